import com.google.protobuf.Any;
import com.google.protobuf.ByteString;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.BadRequest;
import com.google.rpc.ErrorInfo;
import com.google.rpc.Status;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import io.grpc.stub.MetadataUtils;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
import java.util.concurrent.TimeUnit;
import rowcast.embedding.v1.Column;
import rowcast.embedding.v1.EmbeddingServiceGrpc;
import rowcast.embedding.v1.EmbeddingServiceGrpc.EmbeddingServiceBlockingStub;
import rowcast.embedding.v1.ModelSpec;
import rowcast.embedding.v1.RetrieveRequest;
import rowcast.embedding.v1.RetrieveResponse;

/**
 * Retrieves movies for two viewers over gRPC. The argument is an address, such as
 * 127.0.0.1:9090. If the service requires a token, it is read from the environment variable
 * ROWCAST_TOKEN.
 */
public final class RetrieveOverGrpc {
    private static final long[] VIEWERS = {7, 8};

    private RetrieveOverGrpc() {}

    public static void main(String[] arguments) throws InvalidProtocolBufferException {
        Metadata headers = new Metadata();
        String token = System.getenv("ROWCAST_TOKEN");
        if (token != null) {
            headers.put(
                    Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER),
                    "Bearer " + token);
        }

        // For TLS, use TlsChannelCredentials.
        ManagedChannel channel =
                Grpc.newChannelBuilder(arguments[0], InsecureChannelCredentials.create())
                        .intercept(MetadataUtils.newAttachHeadersInterceptor(headers))
                        .build();
        try {
            EmbeddingServiceBlockingStub stub = EmbeddingServiceGrpc.newBlockingStub(channel);
            print(retrieve(stub, requestAt(20, 9)));
            try {
                retrieve(stub, requestAt(20, 24)); // a day has the hours 0 to 23
            } catch (StatusRuntimeException failure) {
                print(StatusProto.fromThrowable(failure));
            }
        } finally {
            channel.shutdownNow();
        }
    }

    /**
     * Returns a request for both viewers. Each column holds the values of both: viewer i owns
     * history[offsets[i]] up to history[offsets[i + 1]].
     */
    private static RetrieveRequest requestAt(long... hours) {
        Column history =
                Column.newBuilder()
                        .setInt64S(pack(1, 5, 12, 31, 47))
                        .setOffsets(packInts(0, 4, 5))
                        .build();
        return RetrieveRequest.newBuilder()
                .setModel(ModelSpec.newBuilder().setName("movielens"))
                .setK(5)
                .putContext("user_id", Column.newBuilder().setInt64S(pack(VIEWERS)).build())
                .putContext("hour", Column.newBuilder().setInt64S(pack(hours)).build())
                .putContext("history", history)
                .build();
    }

    /** Sends a request, with a deadline that begins now. */
    private static RetrieveResponse retrieve(
            EmbeddingServiceBlockingStub stub, RetrieveRequest request) {
        return stub.withDeadlineAfter(5, TimeUnit.SECONDS).retrieve(request);
    }

    private static void print(RetrieveResponse response) {
        LongBuffer ids = packed(response.getIds().getInt64S()).asLongBuffer();
        FloatBuffer scores = packed(response.getScores()).asFloatBuffer();
        IntBuffer offsets = packed(response.getOffsets()).asIntBuffer();
        for (int viewer = 0; viewer < VIEWERS.length; viewer++) {
            for (int i = offsets.get(viewer); i < offsets.get(viewer + 1); i++) {
                System.out.printf("%d %d %.6f%n", VIEWERS[viewer], ids.get(i), scores.get(i));
            }
        }
    }

    private static void print(Status error) throws InvalidProtocolBufferException {
        for (Any detail : error.getDetailsList()) {
            if (detail.is(ErrorInfo.class)) {
                String reason = detail.unpack(ErrorInfo.class).getReason();
                System.out.printf("error %s: %s%n", reason, error.getMessage());
            } else if (detail.is(BadRequest.class)) {
                for (BadRequest.FieldViolation violation :
                        detail.unpack(BadRequest.class).getFieldViolationsList()) {
                    System.out.printf(
                            "  %s: %s%n", violation.getField(), violation.getDescription());
                }
            }
        }
    }

    /** Returns the bytes of a packed column, which are little-endian. */
    private static ByteString pack(long... values) {
        ByteBuffer buffer = ByteBuffer.allocate(values.length * Long.BYTES);
        buffer.order(ByteOrder.LITTLE_ENDIAN).asLongBuffer().put(values);
        return ByteString.copyFrom(buffer);
    }

    private static ByteString packInts(int... values) {
        ByteBuffer buffer = ByteBuffer.allocate(values.length * Integer.BYTES);
        buffer.order(ByteOrder.LITTLE_ENDIAN).asIntBuffer().put(values);
        return ByteString.copyFrom(buffer);
    }

    private static ByteBuffer packed(ByteString bytes) {
        return bytes.asReadOnlyByteBuffer().order(ByteOrder.LITTLE_ENDIAN);
    }
}
