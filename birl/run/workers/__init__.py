"""Worker processes of a run: collectors, replay shards and further learners."""
