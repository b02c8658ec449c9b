package wire

// Push lets the cluster itself deliver a queue's messages: it leases them and
// sends each to URL by POST.
type Push struct {
	URL           string            `json:"url"`
	Headers       map[string]string `json:"headers,omitzero"`
	TimeoutMS     int64             `json:"timeout_ms"`           // of a request with its answer; 0: 30 s
	MaxInFlight   int64             `json:"max_in_flight"`        // requests at a time; 0: 10
	RatePerSecond float64           `json:"rate_per_second"`      // 0: no limit
	Format        string            `json:"format"`               // payload (also ""), cloudevents, cloudevents_binary
	Input         map[string]string `json:"input,omitzero"`       // the body's fields, as CEL expressions; none: the payload
	SecretEnv     Strings           `json:"secret_env,omitzero"`  // environment variables, and files below --secrets-dir, of the
	SecretFile    Strings           `json:"secret_file,omitzero"` // node: the secrets to sign with
	AnswerTo      string            `json:"answer_to,omitzero"`   // the queue that JSON answers go to
}

// PushReason says why a queue's push does not deliver.
type PushReason struct {
	Code      string `json:"code"` // push_target_down, push_secret_missing, push_answer_queue_missing, push_off, push_policy_unknown
	Detail    string `json:"detail"`
	LastError string `json:"last_error,omitzero"` // push_target_down
	Failures  int64  `json:"failures,omitzero"`   // in a row
	NextProbe Time   `json:"next_probe,omitzero"`
}
