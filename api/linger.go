package api

import (
	"net/http"
	"time"
)

// How much of a refused body is still taken, and for how long.
const (
	lingerBytes = 64 << 20
	lingerFor   = 10 * time.Second
	lingerIdle  = time.Second
)

// linger takes, once a request is refused, what its client still sends: many
// read the answer only after they have sent everything, and would see nothing
// but a reset connection. The answer is out before, so nobody waits for this.
func (q *request) linger() {
	if q.ProtoMajor != 1 || q.ContentLength == 0 || q.whole || q.Header.Get("Expect") != "" {
		return
	}
	rc := http.NewResponseController(q.w)
	if rc.Flush() != nil {
		return
	}
	end := time.Now().Add(lingerFor)
	buf := make([]byte, 32<<10)
	for n := 0; n < lingerBytes && time.Now().Before(end); {
		_ = rc.SetReadDeadline(time.Now().Add(lingerIdle))
		k, err := q.Request.Body.Read(buf)
		if n += k; err != nil {
			return
		}
	}
}
