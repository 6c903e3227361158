"""What both doors speak: requests and answers as JSON and as protobuf messages, request ids, deadlines, failures."""
