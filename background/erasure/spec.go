package erasure

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/qlogd/qlogd/event"
)

// Spec is what an erasure is to do: the JSON of its task's creation
// (event.Content.Spec). Either a message, by any id that it has or had, or all
// messages of a key that were in a queue when the task was made.
type Spec struct {
	Message string `json:"message_id,omitzero"`
	Queue   string `json:"queue,omitzero"`
	Key     string `json:"key,omitzero"`
	Reason  string `json:"reason"`
}

// Encode returns the JSON.
func (s *Spec) Encode() []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // strings alone
	}
	return b
}

// DecodeSpec is the inverse. id is the message's, zero where it is a key's.
func DecodeSpec(b []byte) (s *Spec, id event.ID, err error) {
	s = &Spec{}
	if err = json.Unmarshal(b, s); err == nil {
		switch {
		case s.Message != "":
			id, err = event.ParseID(s.Message)
		case s.Queue == "" || s.Key == "":
			err = errors.New("neither a message nor a key of a queue")
		}
	}
	if err != nil {
		return nil, id, fmt.Errorf("what the task is to erase: %w", err)
	}
	return s, id, nil
}
