"""Records a sample of the requests, and replays it against new model versions."""
