package api

import "net/http"

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

// packed reports whether the route's bodies and answers may be MessagePack.
func (q *request) packed() bool { return q.Method == http.MethodPost && msgpackRoutes[q.path] }

// wantsMsgpack reports whether the client asks for MessagePack on a route that has it.
func (q *request) wantsMsgpack() bool { return q.packed() && q.accepts(isMsgpack) }
