// Retrieve_over_grpc retrieves movies for two viewers over gRPC. The argument is an
// address, such as 127.0.0.1:9090. If the service requires a token, it is read from the
// environment variable ROWCAST_TOKEN.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"log"
	"os"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "rowcast/embedding/v1"
)

var viewers = []int64{7, 8}

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: [ROWCAST_TOKEN=TOKEN] retrieve_over_grpc HOST:PORT")
	}
	// For TLS, use credentials.NewTLS. From grpc-go 1.63 on, write grpc.NewClient, and
	// grpc.WithTransportCredentials(insecure.NewCredentials()).
	connection, err := grpc.Dial(os.Args[1], grpc.WithInsecure())
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	client := pb.NewEmbeddingServiceClient(connection)

	response, err := retrieve(client, request(20, 9))
	if err != nil {
		log.Fatal(err)
	}
	printNeighbors(response)

	_, err = retrieve(client, request(20, 24)) // a day has the hours 0 to 23
	printError(err)
}

// request returns a request for both viewers. Each column holds the values of both:
// viewer i owns history[offsets[i]:offsets[i+1]].
func request(hours ...int64) *pb.RetrieveRequest {
	return &pb.RetrieveRequest{
		Model: &pb.ModelSpec{Name: "movielens"},
		K:     5,
		Context: map[string]*pb.Column{
			"user_id": {Values: &pb.Column_Int64S{Int64S: pack(viewers...)}},
			"hour":    {Values: &pb.Column_Int64S{Int64S: pack(hours...)}},
			"history": {
				Values:  &pb.Column_Int64S{Int64S: pack[int64](1, 5, 12, 31, 47)},
				Offsets: pack[int32](0, 4, 5),
			},
		},
	}
}

// retrieve sends a request with a deadline, and with a token if there is one.
func retrieve(
	client pb.EmbeddingServiceClient, request *pb.RetrieveRequest,
) (*pb.RetrieveResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if token := os.Getenv("ROWCAST_TOKEN"); token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	return client.Retrieve(ctx, request)
}

func printNeighbors(response *pb.RetrieveResponse) {
	ids := unpack[int64](response.GetIds().GetInt64S())
	scores := unpack[float32](response.Scores)
	offsets := unpack[int32](response.Offsets)
	for n, viewer := range viewers {
		for i := offsets[n]; i < offsets[n+1]; i++ {
			fmt.Printf("%d %d %.6f\n", viewer, ids[i], scores[i])
		}
	}
}

// printError prints the details of an error. One without details comes from gRPC itself,
// or from a proxy.
func printError(err error) {
	failure := status.Convert(err)
	for _, detail := range failure.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			fmt.Printf("error %s: %s\n", detail.Reason, failure.Message())
		case *errdetails.BadRequest:
			for _, violation := range detail.FieldViolations {
				fmt.Printf("  %s: %s\n", violation.Field, violation.Description)
			}
		}
	}
}

type number interface{ int32 | int64 | float32 }

// pack writes numbers as the bytes of a column.
func pack[T number](values ...T) []byte {
	var buffer bytes.Buffer
	binary.Write(&buffer, binary.LittleEndian, values) // a buffer returns no error
	return buffer.Bytes()
}

// unpack reads the numbers of a column; their size divides its length.
func unpack[T number](data []byte) []T {
	var value T
	values := make([]T, len(data)/binary.Size(value))
	binary.Read(bytes.NewReader(data), binary.LittleEndian, values)
	return values
}
