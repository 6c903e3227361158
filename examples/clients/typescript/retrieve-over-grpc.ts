// Retrieves movies for two viewers over gRPC, with grpc-js and the types that ts-proto
// generates. The argument is an address, such as 127.0.0.1:9090. If the service requires a
// token, it is read from the environment variable ROWCAST_TOKEN.
import { credentials, Metadata, type ServiceError } from "@grpc/grpc-js";

import { BadRequest, ErrorInfo } from "./generated/google/rpc/error_details.js";
import { Status } from "./generated/google/rpc/status.js";
import {
  Column,
  EmbeddingServiceClient,
  RetrieveRequest,
  type RetrieveResponse,
} from "./generated/rowcast/embedding/v1/embedding_service.js";

const TIMEOUT_MS = 5000;
const VIEWERS = [7n, 8n];

/** A column of integers. Typed arrays are little-endian, except on s390x. */
function column(values: bigint[], offsets: number[] = []): Column {
  return Column.create({
    values: { $case: "int64s", value: Buffer.from(BigInt64Array.from(values).buffer) },
    offsets: Buffer.from(Int32Array.from(offsets).buffer),
  });
}

/** A copy of packed bytes, since those in a message need not be aligned. */
function aligned(packed: Buffer): ArrayBuffer {
  return Uint8Array.from(packed).buffer;
}

/** A request for both viewers. Viewer i owns history.slice(offsets[i], offsets[i + 1]). */
function requestAt(hours: bigint[]): RetrieveRequest {
  return RetrieveRequest.create({
    model: { name: "movielens" },
    k: 5,
    context: {
      user_id: column(VIEWERS),
      hour: column(hours),
      history: column([1n, 5n, 12n, 31n, 47n], [0, 4, 5]),
    },
  });
}

function retrieve(
  client: EmbeddingServiceClient,
  request: RetrieveRequest,
): Promise<RetrieveResponse> {
  const metadata = new Metadata();
  const token = process.env.ROWCAST_TOKEN;
  if (token) {
    metadata.set("authorization", `Bearer ${token}`);
  }
  const options = { deadline: Date.now() + TIMEOUT_MS };
  return new Promise((resolve, reject) => {
    client.retrieve(request, metadata, options, (error, response) => {
      if (error) {
        reject(error);
      } else {
        resolve(response);
      }
    });
  });
}

function printNeighbors(response: RetrieveResponse): void {
  if (response.ids?.kind?.$case !== "int64s") {
    throw new Error("the ids of this model are integers");
  }
  const ids = new BigInt64Array(aligned(response.ids.kind.value));
  const scores = new Float32Array(aligned(response.scores));
  const offsets = new Int32Array(aligned(response.offsets));
  VIEWERS.forEach((viewer, n) => {
    for (let i = offsets[n]; i < offsets[n + 1]; i++) {
      console.log(`${viewer} ${ids[i]} ${scores[i].toFixed(6)}`);
    }
  });
}

/**
 * Prints the details of an error. One without details comes from gRPC itself, or from a
 * proxy.
 */
function printError(error: ServiceError): void {
  const encoded = error.metadata.get("grpc-status-details-bin") as Buffer[];
  const details = encoded.flatMap((status) => Status.decode(status).details);
  for (const { typeUrl, value } of details) {
    if (typeUrl === "type.googleapis.com/google.rpc.ErrorInfo") {
      console.log(`error ${ErrorInfo.decode(value).reason}: ${error.details}`);
    } else if (typeUrl === "type.googleapis.com/google.rpc.BadRequest") {
      for (const violation of BadRequest.decode(value).fieldViolations) {
        console.log(`  ${violation.field}: ${violation.description}`);
      }
    }
  }
}

const [address] = process.argv.slice(2);
// For TLS, use credentials.createSsl().
const client = new EmbeddingServiceClient(address, credentials.createInsecure());

printNeighbors(await retrieve(client, requestAt([20n, 9n])));
try {
  await retrieve(client, requestAt([20n, 24n])); // a day has the hours 0 to 23
} catch (error) {
  printError(error as ServiceError);
}
client.close();
