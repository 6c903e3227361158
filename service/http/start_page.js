// The page at `/`: it reads the models, fills a form with an example, and shows the response.
// What comes from a model is added as text, never as HTML.

const POLL_MS = 5_000;
const LIVE_WINDOW_MS = 60_000;
const CALLS = {
  recommend: "Recommend",
  retrieve: "Retrieve",
  rank: "Rank",
  embed: "Embed",
  lookup: "Look up",
};
const GROUPS = {
  context: "Features of the context",
  features: "Features",
  candidate_features: "Features of the candidates, a value for each",
};
const HINTS = {
  k: "number of candidates",
  attributes: "returned with each candidate",
  candidate_ids: "list of ids",
};
const SHOWN_ATTRIBUTES_MAX = 6;
const INPUT_CHARS_MAX = 40;

let token = "";
let waitsForToken = false;
let models = null; // not read yet
let examples = {}; // a body by model and call
let selected = null; // the row of the chosen version
let details = null; // the description of the chosen version
let call = "";
let fields = [];
let snapshots = []; // counts of requests over the last minute, oldest first

const byId = (id) => document.getElementById(id);

function element(tag, properties, ...children) {
  const created = Object.assign(document.createElement(tag), properties);
  created.append(...children);
  return created;
}

// Heads and cells are texts, or objects with a `text` and whether it `isNumber`.
function table(heads, rows, caption = []) {
  const cell = (tag) => (content) => {
    const { text, isNumber } = content.text === undefined ? { text: content } : content;
    return element(tag, { className: isNumber ? "number" : "" }, text);
  };
  const head = element("tr", {}, ...heads.map(cell("th")));
  const body = rows.map((row) => element("tr", {}, ...row.map(cell("td"))));
  return element(
    "table",
    {},
    ...caption.map((text) => element("caption", {}, text)),
    element("thead", {}, head),
    element("tbody", {}, ...body),
  );
}

const number = (text) => ({ text, isNumber: true });

// ---- The service ----

async function request(path, options = {}) {
  const headers = { ...options.headers };
  if (token) headers.authorization = `Bearer ${token}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch {
    throw new Error("The service does not respond.");
  }
  if (response.ok) return response;
  const { error = {} } = await response.json().catch(() => ({}));
  const problem = new Error(error.message ?? `The response has the status ${response.status}.`);
  throw Object.assign(problem, { status: response.status, violations: error.violations });
}

const json = async (path) => (await request(path)).json();

const modelPath = (model) => `v1/models/${encodeURIComponent(model)}`;

async function refresh() {
  if (waitsForToken || document.hidden) return;
  try {
    await refreshHealth();
    await refreshModels();
    byId("models-problem").textContent = "";
    await refreshLive();
  } catch (problem) {
    if (problem.status === 401) askForToken(problem);
    else byId("models-problem").textContent = problem.message;
  }
}

async function refreshHealth() {
  let text = "Ready";
  try {
    await request("readyz");
  } catch (problem) {
    text = problem.status ? `Not ready: ${problem.message}` : problem.message;
  }
  const health = byId("health");
  health.className = text === "Ready" ? "good" : "problem";
  // Screen readers repeat a status that is written again.
  if (health.textContent !== text) health.textContent = text;
}

function askForToken(problem) {
  waitsForToken = true;
  byId("token-problem").textContent = token ? problem.message : "";
  byId("token-form").hidden = false;
  document.querySelector("main").hidden = true;
  // A browser that follows a link sends no token.
  document.querySelector("nav").hidden = true;
  byId("token").focus();
}

// ---- Models ----

async function refreshModels() {
  const list = await readModels();
  byId("token-form").hidden = true;
  document.querySelector("main").hidden = false;
  if (JSON.stringify(list) === JSON.stringify(models)) return;
  examples = examplesOf(await json("openapi.json"));
  models = list;
  const rows = models.flatMap(({ name, versions }) =>
    versions.map((version) => ({ model: name, ...version })),
  );
  const hadFocus = byId("models").contains(document.activeElement);
  byId("models").replaceChildren(...rows.map(versionRow));
  byId("no-models").hidden = rows.length > 0;
  const isSelected = (row) => row.model === selected?.model && row.version === selected.version;
  const same = rows.find((row) => isSelected(row) && isServed(row));
  const chosen = same ?? rows.find((row) => row.current) ?? rows.find(isServed);
  if (!chosen) return;
  const radio = byId(`${chosen.model}/${chosen.version}`);
  radio.checked = true;
  if (hadFocus) radio.focus();
  if (!same) {
    await select(chosen);
    return;
  }
  selected = same;
  showCode();
}

async function readModels() {
  try {
    return (await json("v1/models")).models;
  } catch (problem) {
    if (problem.status !== 403) throw problem;
  }
  // A token for some models may not list them; the document has examples of those.
  const names = Object.keys(examplesOf(await json("openapi.json")));
  const described = await Promise.all(names.map((name) => json(modelPath(name))));
  return described.map(({ model, version, labels }) => ({
    name: model,
    versions: [{ version, labels, current: true, state: "available", problem: "" }],
  }));
}

function examplesOf({ paths }) {
  const bodies = {};
  for (const name of Object.keys(CALLS)) {
    const { content } = paths[`/v1/models/{model}:${name}`].post.requestBody;
    for (const [model, { value }] of Object.entries(content["application/json"].examples ?? {})) {
      bodies[model] ??= {};
      bodies[model][name] = value;
    }
  }
  return bodies;
}

const isServed = ({ state }) => state === "available" || state === "kept";

function versionRow(row) {
  const { model, version, state, current, labels, problem } = row;
  const radio = element("input", {
    id: `${model}/${version}`,
    type: "radio",
    name: "version",
    disabled: !isServed(row),
    ariaLabel: `${model}, version ${version}`,
    onchange: () => select(row),
  });
  const notes = labels.map((label) => ` · label ${label}`);
  if (current) notes.unshift(" · current");
  const stateCell = element("td", {}, element("span", { className: state }, state), ...notes);
  if (problem) stateCell.append(element("p", { className: "problem" }, problem));
  const nameCell = element("td", {}, element("label", {}, radio, element("span", {}, model)));
  return element("tr", {}, nameCell, element("td", {}, version), stateCell);
}

async function select(row) {
  selected = row;
  let description;
  try {
    description = await json(`${modelPath(row.model)}/versions/${row.version}`);
  } catch (problem) {
    byId("models-problem").textContent = problem.message;
    return;
  }
  // Another version may have been chosen meanwhile.
  if (selected !== row) return;
  details = description;
  snapshots = [];
  const described = details.calls.map((signature) => signature.call);
  const offered = new Set([...described, ...Object.keys(examples[row.model] ?? {})]);
  const names = Object.keys(CALLS).filter((name) => offered.has(name));
  byId("request").hidden = names.length === 0;
  byId("results").hidden = names.length === 0;
  if (names.length === 0) return;
  if (!offered.has(call)) [call] = names;
  byId("calls").replaceChildren(byId("calls").firstElementChild, ...names.map(callChoice));
  showForm();
  await refreshLive();
}

function callChoice(name) {
  const choose = () => {
    call = name;
    showForm();
  };
  const properties = { type: "radio", name: "call", checked: name === call, onchange: choose };
  return element("label", {}, element("input", properties), CALLS[name]);
}

// ---- The form ----

function showForm() {
  clearResponse();
  const signatures = details.calls.filter((signature) => signature.call === call);
  const declared = signatures.flatMap((signature) => signature.features);
  const features = new Map(declared.map((feature) => [feature.name, feature]));
  const body = structuredClone(examples[selected.model]?.[call] ?? emptyBody(features));
  const returnsNeighbors = call === "recommend" || call === "retrieve";
  if (returnsNeighbors) {
    const index = details.indexes.find(({ name }) => name === body.index) ?? details.indexes[0];
    const { attributes } = details.corpora.find(({ name }) => name === index.corpus);
    if (attributes.length > 0) body.attributes = attributes.slice(0, SHOWN_ATTRIBUTES_MAX);
  }

  fields = [];
  const groups = [];
  const options = element("fieldset", {}, element("legend", {}, "Options"));
  for (const [name, value] of Object.entries(body)) {
    if (!(name in GROUPS)) {
      const isRequired = name !== "attributes";
      options.append(addField({ name, value, hint: HINTS[name] ?? "", isRequired }));
      continue;
    }
    const group = element("fieldset", {}, element("legend", {}, GROUPS[name]));
    for (const [featureName, featureValue] of Object.entries(value)) {
      const { type, required } = features.get(featureName);
      const list = Array.isArray(featureValue) ? "list of " : "";
      const hint = `${list}${type}${required ? "" : ", optional"}`;
      const kind = { hint, isRequired: required, isText: type === "string" };
      group.append(addField({ group: name, name: featureName, value: featureValue, ...kind }));
    }
    groups.push(group);
  }
  const hint = `JSON${returnsNeighbors ? ', such as {"exclude_ids": [1, 5]}' : ""}`;
  options.append(addField({ name: "Further options", value: "", hint, isJson: true }));
  byId("fields").replaceChildren(...groups, options);
  byId("send").textContent = CALLS[call];
  showCode();
}

// Returns the body of a model without an example: the document has those of the first models.
function emptyBody(features) {
  const isScalar = ({ kind, shape }) => kind === "single" || (kind === "dense" && !shape.length);
  const sent = [...features.values()].filter(({ role }) => call === "embed" || role === "context");
  const values = sent.map((feature) => [feature.name, isScalar(feature) ? "" : []]);
  const body = { [call === "embed" ? "features" : "context"]: Object.fromEntries(values) };
  return call === "rank" ? { ...body, candidate_ids: [] } : body;
}

function addField({ group, name, value, hint, isRequired, isText, isJson }) {
  const id = `field-${fields.length}`;
  const text = written(value);
  const isLong = isJson || text.length > INPUT_CHARS_MAX;
  const input = element(isLong ? "textarea" : "input", {
    id,
    value: text,
    autocomplete: "off",
    spellcheck: false,
    oninput: showCode,
  });
  input.setAttribute("aria-describedby", `${id}-problem`);
  const problem = element("p", { id: `${id}-problem`, className: "problem" });
  const path = group ? `${group}.${name}` : name;
  isText ??= typeof [value].flat(Infinity)[0] === "string";
  const isList = Array.isArray(value);
  fields.push({ group, name, path, input, problem, isRequired, isText, isList, isJson });
  const label = element("label", { htmlFor: id }, name, element("span", {}, hint));
  return element("div", { className: "field" }, label, input, problem);
}

// Returns a value as a person writes it: a list without brackets, where that is not ambiguous.
function written(value) {
  if (typeof value !== "object") return String(value);
  const isPlain = (item) => !Array.isArray(item) && /^[^\s,[{]([^,]*[^\s,])?$/.test(item);
  const isPlainList = Array.isArray(value) && value.every(isPlain);
  return isPlainList ? value.join(", ") : JSON.stringify(value);
}

function read(text, { isText, isList, isJson }) {
  const scalar = (item) => {
    const parsed = Number(item);
    // Integers that a browser would round travel as text. The service names what is no number.
    const isRounded = Number.isInteger(parsed) && !Number.isSafeInteger(parsed);
    const staysText = isText || item.trim() === "" || Number.isNaN(parsed) || isRounded;
    return staysText ? item : parsed;
  };
  const isWrittenAsJson = isList ? /^\s*[[{]/.test(text) : !isText && /^\s*\{/.test(text);
  if (isJson || isWrittenAsJson) return JSON.parse(text);
  if (!isList) return scalar(text);
  const items = text.split(",").map((item) => item.trim());
  return items.filter((item) => item !== "").map(scalar);
}

// Returns the body of the request; null: a field has no such JSON as is needed, and says so.
function readBody() {
  const body = {};
  for (const field of fields) {
    const { group, name, input, isRequired, isJson } = field;
    showProblem(field, "");
    if (group) body[group] ??= {};
    if (input.value.trim() === "" && !isRequired) continue;
    try {
      const value = read(input.value, field);
      if (isJson && (typeof value !== "object" || value === null || Array.isArray(value))) {
        showProblem(field, 'A JSON object is expected, such as {"k": 5}.');
        return null;
      }
      if (isJson) Object.assign(body, value);
      else if (group) body[group][name] = value;
      else body[name] = value;
    } catch {
      showProblem(field, "This is not valid JSON.");
      return null;
    }
  }
  return body;
}

function showProblem({ input, problem }, text) {
  problem.textContent = text;
  input.setAttribute("aria-invalid", String(text !== ""));
}

function callPath() {
  const version = selected.current ? "" : `/versions/${selected.version}`;
  return `${modelPath(selected.model)}${version}:${call}`;
}

async function send(event) {
  event.preventDefault();
  clearResponse();
  const body = readBody();
  if (!body) return;
  byId("summary").textContent = "Waiting for the response…";
  const began = performance.now();
  const headers = { "content-type": "application/json" };
  try {
    const options = { method: "POST", headers, body: JSON.stringify(body) };
    const response = await request(callPath(), options);
    const content = await response.json();
    showResponse(content, performance.now() - began, response.headers.get("server-timing") ?? "");
  } catch (problem) {
    showFailure(problem);
  }
}

function showFailure({ message, violations = [] }) {
  byId("summary").textContent = "The request failed.";
  byId("request-problem").textContent = message;
  const blamed = [];
  for (const { field: path, value, expected } of violations) {
    const field = fields.find((known) => path === known.path || path.startsWith(`${known.path}[`));
    if (!field) continue;
    showProblem(field, `${value} was sent; ${expected} was expected`);
    blamed.push(field.input);
  }
  (blamed[0] ?? byId("send")).focus();
}

// ---- The response ----

function clearResponse() {
  byId("request-problem").textContent = "";
  byId("summary").textContent = "Nothing was sent yet.";
  byId("rows").hidden = true;
  byId("response-json").hidden = true;
}

function showResponse(content, elapsedMs, serverTiming) {
  const phases = [...serverTiming.matchAll(/(\w+);dur=([\d.]+)/g)].map(
    ([, name, ms]) => `${name} ${Number(ms).toFixed(1)}`,
  );
  const parts = [`${content.model}, version ${content.version}`];
  parts.push(`${elapsedMs.toFixed(1)} ms from this browser`);
  if (phases.length > 0) parts.push(`in the service: ${phases.join(", ")} ms`);
  if (content.degraded_reason) parts.push(content.degraded_reason);
  byId("summary").textContent = parts.join(" · ");

  const columns = columnsOf(content);
  const cells = ({ values }, row) => {
    const isNumber = values.some((value) => typeof value === "number");
    return { text: shown(values[row]), isNumber };
  };
  const rows = (columns[0]?.values ?? []).map((_, row) => [
    number(row + 1),
    ...columns.map((column) => cells(column, row)),
  ]);
  const heads = columns.map((column) => ({ ...cells(column, 0), text: column.name }));
  const isEmpty = columns.length > 0 && rows.length === 0;
  const filled = isEmpty ? "No candidate was returned." : table([number("#"), ...heads], rows);
  byId("rows").replaceChildren(filled);
  byId("rows").hidden = columns.length === 0;
  byId("response-json").hidden = false;
  byId("response-json").open = columns.length === 0;
  byId("response-json").querySelector("code").textContent = literal(content, {}, ",\n ");
  const isBelow = byId("results").getBoundingClientRect().top > window.innerHeight / 2;
  if (isBelow) byId("results").scrollIntoView();
}

// Returns the lists with a value for each candidate: what a person knows it by, and the score first.
function columnsOf({ attributes = {}, heads = {}, ids, scores, retrieval_scores, sources }) {
  const [[title, titles] = ["title"], ...others] = Object.entries(attributes);
  const columns = [
    [title, titles],
    ["id", ids],
    ["score", scores],
    ...others,
    ...Object.entries(heads),
    ["retrieval score", retrieval_scores],
    ["source", sources],
  ];
  return columns.filter(([, values]) => values).map(([name, values]) => ({ name, values }));
}

function shown(value) {
  if (value === null) return "–";
  if (Array.isArray(value)) return value.map(shown).join(", ");
  if (typeof value === "number" && !Number.isInteger(value)) return value.toFixed(4);
  return String(value);
}

// ---- The request in code ----

// Returns a value as a literal of JSON, or of Python with its words for true, false and null.
function literal(value, words, separator = ", ") {
  const nested = (item) => literal(item, words);
  if (Array.isArray(value)) return `[${value.map(nested).join(", ")}]`;
  if (value === null || typeof value !== "object") return words[value] ?? JSON.stringify(value);
  const entries = Object.entries(value).map(([name, item]) => `"${name}": ${nested(item)}`);
  return `{${entries.join(separator)}}`;
}

function showCode() {
  const body = readBody();
  if (!body) return;
  const url = new URL(".", document.baseURI).href;
  const inShell = (text) => `'${text.replaceAll("'", String.raw`'\''`)}'`;
  const lines = [`curl -sS ${inShell(url + callPath())}`, "-H 'content-type: application/json'"];
  if (token) lines.push('-H "authorization: Bearer $TOKEN"');
  lines.push(`-d ${inShell(literal(body, {}, ",\n       "))}`);
  byId("curl").textContent = lines.join(" \\\n  ");

  const target = { model: selected.model };
  if (!selected.current) target.version = selected.version;
  const words = { true: "True", false: "False", null: "None" };
  const credentials = token ? ', token=os.environ["TOKEN"]' : "";
  const program = [
    "from rowcast_client import Client",
    "",
    `with Client("${url.replace(/\/$/, "")}"${credentials}) as client:`,
    `    result = client.${call}(`,
    ...Object.entries({ ...body, ...target }).map(
      // A version beyond 2^53 is a string in JSON.
      ([name, value]) =>
        `        ${name}=${name === "version" ? value : literal(value, words)},`,
    ),
    "    )",
    "    print(result)",
  ];
  if (token) program.unshift("import os", "");
  byId("python").textContent = program.join("\n");
}

function copy({ target }) {
  // Browsers have navigator.clipboard over HTTPS and on this machine alone.
  getSelection().selectAllChildren(byId(target.dataset.copies));
  target.textContent = document.execCommand("copy") ? "Copied" : "Press Ctrl+C";
  setTimeout(() => {
    target.textContent = "Copy";
  }, 2_000);
}

// ---- Live ----

async function refreshLive() {
  if (!details) return;
  try {
    showLive(await (await request("metrics")).text());
  } catch (problem) {
    byId("latency").textContent = problem.message;
  }
}

function showLive(text) {
  const wanted = /^rowcast_(request_seconds_bucket|requests_total|live_recall\w*)\{(.*)\} (\S+)$/gm;
  const samples = [...text.matchAll(wanted)].map(([, name, labels, value]) => ({
    ...Object.fromEntries([...labels.matchAll(/(\w+)="([^"]*)"/g)].map((pair) => pair.slice(1))),
    name,
    value: Number(value),
  }));
  const ofModel = samples.filter(({ model }) => model === selected.model);
  showLatencies(countsOf(ofModel));
  const recalls = details.indexes.map((index) => element("li", {}, recallText(index, ofModel)));
  byId("recall").replaceChildren(...recalls);
}

// Returns by call the number of requests since the service started, of those that failed, and of
// those that took at most so many seconds; over both transports.
function countsOf(samples) {
  const none = (name) => [name, { all: 0, failed: 0, within: {} }];
  const counts = Object.fromEntries(Object.keys(CALLS).map(none));
  for (const { name, call: counted, code, le, value } of samples) {
    const count = counts[counted];
    if (!count) continue;
    if (name === "request_seconds_bucket") count.within[le] = (count.within[le] ?? 0) + value;
    if (name === "requests_total") count.all += value;
    if (name === "requests_total" && code !== "OK") count.failed += value;
  }
  return counts;
}

function showLatencies(counts) {
  const now = Date.now();
  const recent = snapshots.filter(({ at }) => now - at <= LIVE_WINDOW_MS);
  snapshots = [...recent, { at: now, counts }];
  const earlier = snapshots[0].counts;
  const isRecent = Object.keys(CALLS).some((name) => counts[name].all > earlier[name].all);
  const since = isRecent ? earlier : countsOf([]);
  const names = Object.keys(CALLS).filter((name) => counts[name].all > since[name].all);
  const rows = names.map((name) => {
    const latencies = [0.5, 0.99].map((quantile) => latency(counts[name], since[name], quantile));
    const requests = counts[name].all - since[name].all;
    const failed = counts[name].failed - since[name].failed;
    return [CALLS[name], ...[requests, failed, ...latencies].map(number)];
  });
  const heads = ["Requests", "Failed", "50 % within", "99 % within"].map(number);
  const period = isRecent ? "in the last minute" : "since the service started";
  const caption = `Requests to ${selected.model} ${period}`;
  const filled = rows.length > 0 ? table(["Call", ...heads], rows, [caption]) : `${caption}: none.`;
  byId("latency").replaceChildren(filled);
}

// Returns a quantile of the durations: the end of the bucket that it lies in.
function latency({ within }, since, quantile) {
  const buckets = Object.entries(within).map(([le, count]) => ({
    end: le === "+Inf" ? Infinity : Number(le),
    count: count - (since.within[le] ?? 0),
  }));
  buckets.sort((left, right) => left.end - right.end);
  const rank = quantile * (buckets.at(-1)?.count ?? 0);
  if (rank === 0) return "–";
  const { end } = buckets.find(({ count }) => count >= rank);
  if (end === Infinity) return "longer";
  return end < 1 ? `${Number((1000 * end).toPrecision(3))} ms` : `${end} s`;
}

function recallText({ name, kind, recall, recall_k }, samples) {
  if (kind === "brute_force") return `Recall of the index ${name}: 1, as its search is exact.`;
  const exported = `${recall.toFixed(3)} at export, for ${recall_k} neighbors`;
  const valueOf = (metric) =>
    samples.find((sample) => sample.name === metric && sample.index === name)?.value;
  const live = valueOf("live_recall");
  if (live === undefined) {
    return `Recall of the index ${name}: ${exported}. No search of the last hour was sampled.`;
  }
  const [low, high] = [valueOf("live_recall_low"), valueOf("live_recall_high")];
  const interval = `95 % interval ${low.toFixed(3)} to ${high.toFixed(3)}`;
  return `Recall of the index ${name}: ${live.toFixed(3)} live (${interval}); ${exported}.`;
}

async function poll() {
  await refresh();
  setTimeout(poll, POLL_MS);
}

byId("request-form").addEventListener("submit", send);
byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  token = byId("token").value;
  waitsForToken = false;
  refresh();
});
for (const button of document.querySelectorAll("[data-copies]")) {
  button.addEventListener("click", copy);
}
poll();
