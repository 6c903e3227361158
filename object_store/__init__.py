"""Files in S3, GCS and other object stores."""
