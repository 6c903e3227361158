// Ranks movies for a viewer over HTTP, with fetch and JSON. The argument is a URL, such as
// http://127.0.0.1:8080. If the service requires a token, it is read from the environment
// variable ROWCAST_TOKEN.

const TIMEOUT_MS = 5000;

interface RankRequest {
  context: { user_id: number; history: number[]; hour: number };
  candidate_ids: string[];
  not_found: "error" | "skip";
}

/** The service writes ids beyond 2^53 as strings, because JSON.parse would round them. */
interface RankResponse {
  ids: (number | string)[];
  scores: number[];
}

interface ServiceError {
  code: string;
  message: string;
  request_id: string;
  violations: { field: string; value: string; expected: string }[];
}

class RowcastError extends Error {
  constructor(readonly details: ServiceError) {
    super(details.message);
  }
}

/**
 * Sends a request. The service gives up at the deadline as well, since a header names it.
 */
async function rank(service: string, request: RankRequest): Promise<RankResponse> {
  const token = process.env.ROWCAST_TOKEN;
  const response = await fetch(`${service}/v1/models/movielens:rank`, {
    method: "POST",
    headers: {
      ...(token && { authorization: `Bearer ${token}` }),
      "content-type": "application/json",
      "x-request-timeout-ms": String(TIMEOUT_MS),
    },
    body: JSON.stringify(request),
    signal: AbortSignal.timeout(TIMEOUT_MS),
  });
  const body = await response.json();
  if (!response.ok) {
    throw new RowcastError(body.error as ServiceError);
  }
  return body as RankResponse;
}

const [service] = process.argv.slice(2);

// The service reads strings wherever it reads ids, so bigints keep all their digits.
const candidateIds = [47n, 50n, 151n, 9007199254740993n].map(String);
const request: RankRequest = {
  context: { user_id: 7, history: [1, 5, 12, 31], hour: 20 },
  candidate_ids: candidateIds,
  not_found: "skip", // the quick start has no movie of the last id
};

const ranked = await rank(service, request);
const ids = ranked.ids.map(BigInt);
ids.forEach((id, i) => {
  console.log(`${request.context.user_id} ${id} ${ranked.scores[i].toFixed(6)}`);
});

try {
  // A day has the hours 0 to 23.
  await rank(service, { ...request, context: { ...request.context, hour: 24 } });
} catch (error) {
  if (!(error instanceof RowcastError)) {
    throw error;
  }
  console.log(`error ${error.details.code}: ${error.details.message}`);
  for (const { field, value, expected } of error.details.violations) {
    console.log(`  ${field}: ${value}; ${expected} was expected`);
  }
}
