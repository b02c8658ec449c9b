package main

import (
	"context"
	"encoding/base64"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

func (a *app) messageResurrectCmd() *cobra.Command {
	var r wire.ResurrectRequest
	var payload string
	var edited func() bool
	cmd := &cobra.Command{
		Use:     "resurrect ID",
		Short:   "Enqueue a message again that was acked or discarded",
		Long:    "Enqueues a message again that was acked or discarded, from the log, as long as history keeps it. It gets a new id, and its history goes on.",
		Example: "  qlogd message resurrect 01J…\n  qlogd message resurrect 01J… --queue jobs-again --payload '{\"fixed\":true}'",
		Args:    args(cobra.ExactArgs(1)),
		RunE: a.onServer(func(ctx context.Context, c *client.Client, argv []string) error {
			if edited() {
				v, err := readValue("payload", payload)
				if err != nil {
					return err
				}
				r.Edit = &wire.ReplayEdit{Payload: v}
			}
			out, err := c.Resurrect(ctx, argv[0], r)
			if err != nil {
				return err
			}
			if a.output == "json" {
				return a.wire(out)
			}
			fmt.Fprintf(a.stdout, "%s is in %s as %s\n", out.MessageID, out.Queue, out.NewMessageID)
			return nil
		}),
	}
	edited = func() bool { return cmd.Flags().Changed("payload") }
	cmd.Flags().StringVar(&r.Queue, "queue", "", "into this queue rather than the one that it was in, or had died in")
	cmd.Flags().StringVar(&payload, "payload", "", "JSON, or @FILE, in place of the message's own")
	a.remoteFlags(cmd)
	return cmd
}

func (a *app) messageEditsCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "edits ID",
		Aliases: []string{"diff"},
		Short:   "Tell what replays and resurrections changed in a message",
		Example: "  qlogd message edits 01J…\n  qlogd message edits 01J… -o json | jq .changes",
		Args:    args(cobra.ExactArgs(1)),
		RunE: a.onServer(func(ctx context.Context, c *client.Client, argv []string) error {
			edits, err := c.Edits(ctx, argv[0])
			if err != nil {
				return err
			}
			var rows [][]any
			for _, e := range edits {
				if a.output == "json" {
					if err := a.wire(e); err != nil {
						return err
					}
					continue
				}
				if e.Note != "" {
					rows = append(rows, []any{a.when(e.Time), e.Type, e.NewMessageID, "-", "", "", e.Note})
				}
				for _, c := range e.Changes {
					rows = append(rows, []any{a.when(e.Time), e.Type, e.NewMessageID, c.Op, c.Path, short(string(c.Old), 60), short(string(c.Value), 60)})
				}
			}
			if a.output == "json" {
				return nil
			}
			return a.table([]string{"time", "by", "new message", "op", "path", "before", "after"}, rows)
		}),
	}
	a.remoteFlags(cmd)
	return cmd
}

// payloadText is a payload as it is printed.
func payloadText(v jsontext.Value, b wire.Bytes, contentType string) string {
	if b != nil {
		return "(" + contentType + ") " + base64.StdEncoding.EncodeToString(b)
	}
	return string(v)
}
