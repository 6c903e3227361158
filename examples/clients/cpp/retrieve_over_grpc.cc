// Retrieves movies for two viewers over gRPC. The argument is an address, such as
// 127.0.0.1:9090. If the service requires a token, it is read from the environment variable
// ROWCAST_TOKEN.
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iomanip>
#include <iostream>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "rowcast/embedding/v1/embedding_service.grpc.pb.h"

namespace pb = rowcast::embedding::v1;

// Packed columns are little-endian. On a machine that is not, reverse the bytes of each
// value.
static_assert(std::endian::native == std::endian::little);

template <typename Value>
std::string Pack(const std::vector<Value>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Value)};
}

template <typename Value>
std::vector<Value> Unpack(const std::string& bytes) {
  std::vector<Value> values(bytes.size() / sizeof(Value));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(Value));
  return values;
}

const std::vector<int64_t> kViewers = {7, 8};

// Each column holds the values of both viewers: viewer i owns history[offsets[i]] up to
// history[offsets[i + 1]].
pb::RetrieveRequest RequestOf(const std::vector<int64_t>& hours) {
  pb::RetrieveRequest request;
  request.mutable_model()->set_name("movielens");
  request.set_k(5);

  auto& context = *request.mutable_context();
  context["user_id"].set_int64s(Pack(kViewers));
  context["hour"].set_int64s(Pack(hours));
  context["history"].set_int64s(Pack<int64_t>({1, 5, 12, 31, 47}));
  context["history"].set_offsets(Pack<int32_t>({0, 4, 5}));
  return request;
}

grpc::Status Retrieve(pb::EmbeddingService::Stub& stub, const pb::RetrieveRequest& request,
                      pb::RetrieveResponse* response) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
  if (const char* token = std::getenv("ROWCAST_TOKEN")) {
    context.AddMetadata("authorization", std::string("Bearer ") + token);
  }
  return stub.Retrieve(&context, request, response);
}

void Print(const pb::RetrieveResponse& response) {
  const auto ids = Unpack<int64_t>(response.ids().int64s());
  const auto scores = Unpack<float>(response.scores());
  const auto offsets = Unpack<int32_t>(response.offsets());

  std::cout << std::fixed << std::setprecision(6);
  for (size_t viewer = 0; viewer < kViewers.size(); ++viewer) {
    for (int32_t i = offsets[viewer]; i < offsets[viewer + 1]; ++i) {
      std::cout << kViewers[viewer] << ' ' << ids[i] << ' ' << scores[i] << '\n';
    }
  }
}

// Prints the details of an error. One without details comes from gRPC itself, or from a
// proxy.
void Print(const grpc::Status& status) {
  google::rpc::Status details;
  details.ParseFromString(status.error_details());
  for (const auto& detail : details.details()) {
    google::rpc::ErrorInfo info;
    google::rpc::BadRequest bad_request;
    if (detail.UnpackTo(&info)) {
      std::cout << "error " << info.reason() << ": " << status.error_message() << '\n';
    } else if (detail.UnpackTo(&bad_request)) {
      for (const auto& violation : bad_request.field_violations()) {
        std::cout << "  " << violation.field() << ": " << violation.description() << '\n';
      }
    }
  }
}

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: [ROWCAST_TOKEN=TOKEN] retrieve_over_grpc HOST:PORT\n";
    return 2;
  }
  // Threads share a channel. For TLS, use grpc::SslCredentials.
  auto channel = grpc::CreateChannel(argv[1], grpc::InsecureChannelCredentials());
  auto stub = pb::EmbeddingService::NewStub(channel);

  pb::RetrieveResponse response;
  grpc::Status status = Retrieve(*stub, RequestOf({20, 9}), &response);
  if (!status.ok()) {
    std::cerr << status.error_message() << '\n';
    return 1;
  }
  Print(response);

  status = Retrieve(*stub, RequestOf({20, 24}), &response);  // a day has the hours 0 to 23
  Print(status);
  return 0;
}
