package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/qlogd/qlogd/client"
)

func (a *app) queueExplainCmd() *cobra.Command {
	var key, message string
	var byKey func() bool // the empty key is one too
	cmd := &cobra.Command{
		Use:     "explain QUEUE",
		Short:   "Tell why a message is, or is not, being delivered",
		Long:    "Tells why a message is or is not being delivered: the one named, or the first that waits under a key, or in the whole queue. Exit code 0 whatever the reason.",
		Example: "  qlogd queue explain jobs\n  qlogd queue explain jobs --key customer-42\n  qlogd queue explain jobs --message 01J… -o json | jq -r '.reasons[].code'",
		Args:    args(cobra.ExactArgs(1)),
		RunE: a.onServer(func(ctx context.Context, c *client.Client, argv []string) error {
			var k *string
			if byKey() {
				k = &key
			}
			x, err := c.Explain(ctx, argv[0], message, k)
			if err != nil {
				return err
			}
			if a.output == "json" {
				return a.wire(x)
			}
			what := "nothing"
			if x.MessageID != nil {
				what = "message " + *x.MessageID
			}
			can := "is not delivered now"
			if x.Deliverable {
				can = "can be delivered now"
			}
			fmt.Fprintf(a.stdout, "%s of %s %s:\n", what, x.Queue, can)
			for _, r := range x.Reasons {
				fmt.Fprintf(a.stdout, "  %s: %s\n", r.Code, short(r.Text, 400))
			}
			return nil
		}),
	}
	byKey = func() bool { return cmd.Flags().Changed("key") }
	cmd.Flags().StringVar(&key, "key", "", "an ordering key")
	cmd.Flags().StringVar(&message, "message", "", "a message's id")
	cmd.MarkFlagsMutuallyExclusive("key", "message")
	a.remoteFlags(cmd)
	return cmd
}
