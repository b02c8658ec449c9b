package main

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"time"
)

// serveAdmin serves pprof on an address of its own, where one is set: never
// where clients are.
func (n *node) serveAdmin() error {
	if n.c.AdminAddr == "" {
		return nil
	}
	l, err := net.Listen("tcp", n.c.AdminAddr)
	if err != nil {
		return fmt.Errorf("admin-addr: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	n.admin = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	n.logger.Info("profiles are served", "admin", l.Addr().String())
	n.work.Go(func() {
		if err := n.admin.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			n.logger.Error("admin listener ended", "error", err)
		}
	})
	return nil
}
