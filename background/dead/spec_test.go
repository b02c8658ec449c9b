package dead

import (
	"reflect"
	"testing"

	"github.com/qlogd/qlogd/event"
)

func TestSpecStays(t *testing.T) {
	key := ""
	id := event.NewID(1, 2, 3)
	for _, s := range []*Spec{
		{},
		{IDs: []event.ID{id}, To: "b", Order: "head", Rate: 7, MaxReplays: 100},
		{Filter: &Filter{Key: &key, Error: "x", From: 1, ToIndex: 9}, Edit: map[event.ID]*Edit{
			id: {HasPayload: true, Payload: []byte(`{"a" : "\u00e9"}`), HasHeaders: true,
				Headers: []event.Header{{Name: "h", Value: "v"}}},
		}},
	} {
		b, err := s.Encode()
		if err != nil {
			t.Fatal(err)
		}
		got, err := DecodeSpec(b)
		if err != nil || !reflect.DeepEqual(got, s) {
			t.Errorf("%s: %+v, want %+v, %v", b, got, s, err)
		}
	}
	if _, err := DecodeSpec([]byte("{")); err == nil {
		t.Error("half a spec is one")
	}
}

func TestEditApplies(t *testing.T) {
	old := &event.Content{Payload: []byte("1"), Error: "e", CorrelationID: "c",
		Headers: []event.Header{{Name: "h", Value: "v"}}, Original: []byte("o")}
	if c := (&Edit{}).Apply(old); string(c.Payload) != "1" || c.Error != "" ||
		len(c.Headers) != 1 || old.Error != "e" {
		t.Errorf("%+v", c)
	}
	if c := (&Edit{HasPayload: true, Payload: []byte{0}, Binary: true, ContentType: "x/y",
		HasHeaders: true}).Apply(old); !c.Binary || c.ContentType != "x/y" || c.Headers != nil ||
		c.CorrelationID != "c" {
		t.Errorf("%+v", c)
	}
}
