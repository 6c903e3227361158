// Rank_over_http ranks movies for a viewer over HTTP, with JSON. The argument is a URL,
// such as http://127.0.0.1:8080. If the service requires a token, it is read from the
// environment variable ROWCAST_TOKEN.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// ID is the id of a candidate. The service writes ids beyond 2^53 as strings, because
// many JSON parsers read numbers as float64, and reads strings wherever it reads ids.
type ID int64

func (id ID) MarshalText() ([]byte, error) {
	return strconv.AppendInt(nil, int64(id), 10), nil
}

func (id *ID) UnmarshalJSON(data []byte) error {
	value, err := strconv.ParseInt(strings.Trim(string(data), `"`), 10, 64)
	*id = ID(value)
	return err
}

type viewer struct {
	UserID  int64   `json:"user_id"`
	History []int64 `json:"history"`
	Hour    int     `json:"hour"`
}

type rankRequest struct {
	Context      viewer `json:"context"`
	CandidateIDs []ID   `json:"candidate_ids"`
	NotFound     string `json:"not_found"`
}

type rankResponse struct {
	IDs    []ID      `json:"ids"`
	Scores []float32 `json:"scores"`
}

// serviceError is the error of a response whose status is not 200.
type serviceError struct {
	Code       string `json:"code"`
	Message    string `json:"message"`
	RequestID  string `json:"request_id"`
	Violations []struct {
		Field    string `json:"field"`
		Value    string `json:"value"`
		Expected string `json:"expected"`
	} `json:"violations"`
}

func (e *serviceError) Error() string {
	return fmt.Sprintf("%s: %s", e.Code, e.Message)
}

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: [ROWCAST_TOKEN=TOKEN] rank_over_http URL")
	}
	request := rankRequest{
		Context:      viewer{UserID: 7, History: []int64{1, 5, 12, 31}, Hour: 20},
		CandidateIDs: []ID{47, 50, 151, 9007199254740993},
		NotFound:     "skip", // the quick start has no movie of the last id
	}
	response, err := rank(request)
	if err != nil {
		log.Fatal(err)
	}
	for i, id := range response.IDs {
		fmt.Printf("%d %d %.6f\n", request.Context.UserID, id, response.Scores[i])
	}

	request.Context.Hour = 24 // a day has the hours 0 to 23
	_, err = rank(request)
	if failure, ok := err.(*serviceError); ok {
		fmt.Println("error", failure)
		for _, violation := range failure.Violations {
			fmt.Printf("  %s: %s; %s was expected\n",
				violation.Field, violation.Value, violation.Expected)
		}
	}
}

// rank sends a request. The service gives up at the deadline as well, since a header
// names it.
func rank(request rankRequest) (*rankResponse, error) {
	const timeout = 5 * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()

	body, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	url := os.Args[1] + "/v1/models/movielens:rank"
	call, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if token := os.Getenv("ROWCAST_TOKEN"); token != "" {
		call.Header.Set("Authorization", "Bearer "+token)
	}
	call.Header.Set("Content-Type", "application/json")
	call.Header.Set("X-Request-Timeout-Ms", strconv.FormatInt(timeout.Milliseconds(), 10))

	reply, err := http.DefaultClient.Do(call)
	if err != nil {
		return nil, err
	}
	defer reply.Body.Close()
	if reply.StatusCode != http.StatusOK {
		var body struct {
			Error *serviceError `json:"error"`
		}
		if err := json.NewDecoder(reply.Body).Decode(&body); err != nil || body.Error == nil {
			return nil, fmt.Errorf("HTTP status %s without an error of the service", reply.Status)
		}
		return nil, body.Error
	}
	var response rankResponse
	return &response, json.NewDecoder(reply.Body).Decode(&response)
}
