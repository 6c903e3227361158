import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublisher;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.util.List;

/** Sends a body to a URL with Java's default HTTP client, which offers an upgrade to HTTP/2. */
class RetrieveClient {
    public static void main(String[] arguments) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        URI url = URI.create(arguments[0]);
        byte[] body = arguments[1].getBytes("UTF-8");

        // One body has a length; the other is chunked, because its length is not known.
        BodyPublisher whole = BodyPublishers.ofByteArray(body);
        BodyPublisher chunked = BodyPublishers.ofByteArrays(List.of(body));

        for (BodyPublisher publisher : List.of(whole, chunked, whole)) {
            HttpRequest request =
                    HttpRequest.newBuilder(url)
                            .header("content-type", "application/json")
                            .POST(publisher)
                            .build();
            HttpResponse<String> response =
                    client.send(request, HttpResponse.BodyHandlers.ofString());
            System.out.println(response.statusCode() + " " + response.body());
        }
    }
}
