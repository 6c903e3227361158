// Calls with the types that openapi-typescript generates, by openapi-fetch; `tsc --strict` checks them.
import createClient from "openapi-fetch";
import type { components, paths } from "./rowcast";

type Filter = components["schemas"]["Filter"];

const client = createClient<paths>({ baseUrl: process.argv[2] });
const path = { model: "movielens" };
const viewer = { user_id: 7, history: [1, 5, 12, 31], hour: 20 };

function expect(holds: unknown, what: string): asserts holds {
  if (!holds) throw new Error(`expected ${what}`);
}

const ranking = await client.POST("/v1/models/{model}:rank", {
  params: { path },
  body: { context: viewer, candidate_ids: [47, "50", 110, 999999], k: 2, not_found: "skip" },
});
expect(ranking.data, "a ranking");
const ids: (number | string)[] | null | undefined = ranking.data.ids;
const scores: number[] = ranking.data.scores ?? [];
expect(ids?.length === 2 && scores.length === 2, "two candidates");
expect(ranking.data.not_found?.[0] === 999999, "the id that does not exist");
console.log("ranked", ids, scores);

const dramas: Filter = { genres: { allow: ["Drama"] }, year: { ge: 1990 } };
const retrieval = await client.POST("/v1/models/{model}:retrieve", {
  params: { path, header: { "x-request-id": "generated-typescript-client" } },
  body: { context: viewer, k: 3, filter: { all: [dramas] }, attributes: ["title"], explain: true },
});
expect(retrieval.data?.attributes?.title?.length === 3, "three titles");
console.log("retrieved", retrieval.data.attributes.title, retrieval.data.explanation?.path);

const details = await client.GET("/v1/models/{model}", { params: { path } });
expect(details.data, "a model");
console.log("tables", details.data.tables.map((table) => `${table.name}: ${table.rows}`));

const unknown = await client.POST("/v1/models/{model}:rank", {
  params: { path: { model: "nowhere" } },
  body: { context: viewer },
});
const code: components["schemas"]["Code"] | undefined = unknown.error?.error.code;
expect(code === "NOT_FOUND", "the code NOT_FOUND");
console.log(code, unknown.error?.error.message);
