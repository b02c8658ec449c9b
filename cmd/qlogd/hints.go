package main

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/qlogd/qlogd/client"
)

// otherNames are what other message queues call the commands.
var otherNames = map[string]string{
	"send": "enqueue", "publish": "enqueue", "produce": "enqueue", "push": "enqueue",
	"receive": "lease", "consume": "lease", "pull": "lease", "get": "lease",
	"nack": "retry", "nak": "retry", "dlq": "dead", "redrive": "dead replay",
	"start": "serve", "server": "serve", "run": "serve", "status": "cluster list",
}

// meantBy returns what a mistyped command may mean, "" for nothing like it.
func meantBy(c *cobra.Command, name string) string {
	if other := otherNames[name]; other != "" && !c.HasParent() {
		return other
	}
	c.SuggestionsMinimumDistance = 2
	return strings.Join(c.SuggestionsFor(name), " or ")
}

// refusal returns a usage error if the server has refused the arguments. To other errors it adds
// what to do about them.
func (a *app) refusal(err error) error {
	if err == nil {
		return nil
	}
	e, ok := errors.AsType[*client.Error](err)
	if !ok {
		return a.unreached(err)
	}
	p := &e.Problem
	p.Detail = strings.ReplaceAll(p.Detail, "force=true", "--force")
	switch {
	case errors.Is(err, client.ErrInvalidArgument) || p.Code == "invalid_json":
		name := p.Field[strings.LastIndexByte(p.Field, '.')+1:]
		flag := a.setBy[p.Field]
		if flag != "" && strings.ReplaceAll(flag, "-", "_") != name {
			return usagef("--%s: %w", flag, err)
		}
		if strings.Contains(p.Detail, name) {
			return usagef("%w", err)
		}
		return usagef("%s: %w", p.Field, err)
	case errors.Is(err, client.ErrUnauthenticated):
		return fmt.Errorf("%w; the token comes from --token-file, --token or QLOGD_TOKEN", err)
	}
	return err
}

// unreached explains why no server has answered.
func (a *app) unreached(err error) error {
	at, _ := a.reached() // the client has reported the error
	addr := at.Addr
	if errors.Is(err, http.ErrSchemeMismatch) {
		return fmt.Errorf("%s does not use TLS: its address begins with http://", addr)
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return fmt.Errorf("%s: %w; --ca-cert names the authority that signed it", addr,
			rootCause(err))
	}
	op, ok := errors.AsType[*net.OpError](err)
	if !ok || op.Op != "dial" || errors.Is(err, client.ErrOutcomeUnknown) {
		return err
	}
	bare := strings.NewReplacer("http://", "", "https://", "", "/,", ",").Replace(addr + ",")
	return fmt.Errorf("no node at %s: start one with `qlogd serve`, or set --addr or QLOGD_ADDR (%w)",
		strings.Join(items(bare), " or "), rootCause(op))
}

// rootCause returns the innermost error that is worth reading.
func rootCause(err error) error {
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		return e
	}
	if e, ok := errors.AsType[*net.DNSError](err); ok {
		return errors.New(e.Err)
	}
	if e, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return e
	}
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err
		}
		err = inner
	}
}
