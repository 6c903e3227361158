import com.google.protobuf.ByteString;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.LongBuffer;
import java.time.Duration;
import rowcast.embedding.v1.Column;
import rowcast.embedding.v1.ErrorDetails;
import rowcast.embedding.v1.FieldViolation;
import rowcast.embedding.v1.Ids;
import rowcast.embedding.v1.NotFoundRule;
import rowcast.embedding.v1.RankRequest;
import rowcast.embedding.v1.RankResponse;

/**
 * Ranks movies for a viewer over HTTP, with the JDK's client at its defaults and protobuf
 * bodies. The argument is a URL, such as http://127.0.0.1:8080. If the service requires a token,
 * it is read from the environment variable ROWCAST_TOKEN.
 */
public final class RankOverHttp {
    private static final Duration TIMEOUT = Duration.ofSeconds(5);
    private static final String PROTOBUF = "application/x-protobuf";
    private static final long VIEWER = 7;

    private final HttpClient client = HttpClient.newHttpClient();
    private final URI url;
    private final String token;

    private RankOverHttp(String service, String token) {
        this.url = URI.create(service + "/v1/models/movielens:rank");
        this.token = token;
    }

    public static void main(String[] arguments) throws IOException, InterruptedException {
        RankOverHttp ranking = new RankOverHttp(arguments[0], System.getenv("ROWCAST_TOKEN"));

        HttpResponse<byte[]> response = ranking.send(requestAt(20));
        if (response.statusCode() != 200) {
            throw new IOException(ErrorDetails.parseFrom(response.body()).getMessage());
        }
        RankResponse ranked = RankResponse.parseFrom(response.body());
        LongBuffer ids = packed(ranked.getIds().getInt64S()).asLongBuffer();
        FloatBuffer scores = packed(ranked.getScores()).asFloatBuffer();
        while (ids.hasRemaining()) {
            System.out.printf("%d %d %.6f%n", VIEWER, ids.get(), scores.get());
        }

        HttpResponse<byte[]> failed = ranking.send(requestAt(24)); // a day has the hours 0 to 23
        ErrorDetails error = ErrorDetails.parseFrom(failed.body());
        String code = error.getCode().name().replaceFirst("ERROR_CODE_", "");
        System.out.printf("error %s: %s%n", code, error.getMessage());
        for (FieldViolation violation : error.getViolationsList()) {
            System.out.printf(
                    "  %s: %s; %s was expected%n",
                    violation.getField(), violation.getValue(), violation.getExpected());
        }
    }

    /**
     * Returns a request to rank four movies for one viewer. The response leaves out those that
     * the model does not have, such as the last one in the quick start.
     */
    private static RankRequest requestAt(long hour) {
        return RankRequest.newBuilder()
                .putContext("user_id", column(VIEWER))
                .putContext("hour", column(hour))
                .putContext("history", column(1, 5, 12, 31))
                .setCandidateIds(
                        Ids.newBuilder().setInt64S(pack(47, 50, 151, 9007199254740993L)))
                .setNotFound(NotFoundRule.NOT_FOUND_RULE_SKIP)
                .build();
    }

    /** Sends a request. The service gives up at the deadline as well, since a header names it. */
    private HttpResponse<byte[]> send(RankRequest request)
            throws IOException, InterruptedException {
        HttpRequest.Builder call =
                HttpRequest.newBuilder(url)
                        .timeout(TIMEOUT)
                        .header("content-type", PROTOBUF)
                        .header("x-request-timeout-ms", Long.toString(TIMEOUT.toMillis()))
                        .POST(BodyPublishers.ofByteArray(request.toByteArray()));
        if (token != null) {
            call.header("authorization", "Bearer " + token);
        }
        return client.send(call.build(), BodyHandlers.ofByteArray());
    }

    private static Column column(long... values) {
        return Column.newBuilder().setInt64S(pack(values)).build();
    }

    /** Returns the bytes of a packed column, which are little-endian. */
    private static ByteString pack(long... values) {
        ByteBuffer buffer = ByteBuffer.allocate(values.length * Long.BYTES);
        buffer.order(ByteOrder.LITTLE_ENDIAN).asLongBuffer().put(values);
        return ByteString.copyFrom(buffer);
    }

    private static ByteBuffer packed(ByteString bytes) {
        return bytes.asReadOnlyByteBuffer().order(ByteOrder.LITTLE_ENDIAN);
    }
}
