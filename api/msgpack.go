package api

import (
	"errors"
	"net/http"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/transcode"
)

// msgpackRoutes are the paths of produce, lease and settle calls. Their bodies and
// answers may be MessagePack: the JSON of the same call, transcoded, so that one
// decoder validates both.
var msgpackRoutes = map[string]bool{
	"/v1/queues/{queue}/messages": true, "/v1/queues/{queue}/lease": true, "/v1/lease": true, "/v1/transactions": true,
}

func init() {
	for name := range settleKinds {
		msgpackRoutes["/v1/queues/{queue}/"+name] = true
		msgpackRoutes["/v1/leases/{lease_id}/"+name] = true
	}
}

func isMsgpack(media string) bool {
	return media == typeMsgpack || media == "application/x-msgpack" || media == "application/vnd.msgpack"
}

// wantsMsgpack reports whether the client asks for MessagePack on a route that has it.
func (q *request) wantsMsgpack() bool {
	return q.Method == http.MethodPost && msgpackRoutes[q.path] && q.accepts(isMsgpack)
}

// unpack reads a MessagePack body by way of its JSON.
func (q *request) unpack(b []byte, v any) error {
	limit := int(2 * q.s.opts.MaxRequest)
	text, err := transcode.ToJSON(b, limit)
	switch {
	case errors.Is(err, transcode.ErrTooLarge):
		return event.Problemf(codePayloadTooLarge, "", "the body is larger than %d bytes as JSON", limit)
	case err != nil:
		return event.Problemf(codeInvalidMsgpack, "", "%s", err)
	case transcode.TooDeep(text, transcode.MaxDepth):
		return event.Problemf(codeInvalidMsgpack, "", "the body is nested deeper than %d", transcode.MaxDepth)
	}
	return decodeProblem(wire.Decode(text, v), codeInvalidMsgpack)
}
