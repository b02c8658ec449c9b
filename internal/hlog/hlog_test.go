package hlog

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/qlogd/qlogd/internal/simtest/assert"
)

func TestHclogToSlog(t *testing.T) {
	var b bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: slog.LevelDebug,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}}))
	h := New(logger, "raft").With("peer", "n2")
	h.Warn("failed to contact", "servers", hclog.Fmt("%d of %d", 1, 3), "error",
		errors.New("refused"))
	h.Info("news")
	h.Trace("too much")
	h.Named("sub").Info("a line")
	want := `level=WARN msg="failed to contact" from=raft peer=n2 servers="1 of 3" error=refused
level=DEBUG msg=news from=raft peer=n2
level=DEBUG msg="a line" from=raft peer=n2
`
	assert.Equal(t, b.String(), want)
}
