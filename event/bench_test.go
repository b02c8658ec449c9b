package event

import "testing"

// BenchmarkCodec encodes and decodes a command of 100 messages of 1 KiB, and
// the content and the header of each.
func BenchmarkCodec(b *testing.B) {
	content := &Content{Payload: make([]byte, 1024)}
	e := &Event{Type: Enqueued, Queue: "q", Key: "customer-42", Priority: 5, Size: 1024}
	c := &Command{Produce: &Produce{Queue: "q"}}
	for range 100 {
		c.Produce.Messages = append(c.Produce.Messages, NewMessage{Key: "customer-42", Priority: 5, Size: 1024, Content: EncodeContent(content)})
	}
	command, header := EncodeCommand(c), AppendHeader(nil, e)
	for name, fn := range map[string]func() error{
		"command/encode": func() error { EncodeCommand(c); return nil },
		"command/decode": func() error { return (&Command{}).Decode(command) },
		"content/encode": func() error { EncodeContent(content); return nil },
		"content/decode": func() error { _, err := DecodeContent(c.Produce.Messages[0].Content.Bytes); return err },
		"header/encode":  func() error { AppendHeader(nil, e); return nil },
		"header/decode":  func() error { return DecodeHeader(header, &Event{}) },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := fn(); err != nil { // must costs more than a header
					b.Fatal(err)
				}
			}
		})
	}
}
