package main

import (
	"context"
	"path"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/qlogd/qlogd/api/wire"
)

// completeWithin is how long a shell waits for names. Without an answer there are none.
const completeWithin = time.Second

// known are the values of flags, by the flag's name or, where commands differ, by the command's and
// the flag's.
var known = map[string]string{
	"ordering": "unordered fifo per_key", "on-retry": "block head tail",
	"on-dead": "skip hold_key dead_letter_key", "on-expired": "dead_letter discard",
	"deduplication-by": "key content", "deduplication-until": "window left",
	"message list/state": "scheduled ready leased", "undo/state": "acked discarded",
	"dead list/reason": deadReasons, "dead groups/reason": deadReasons,
	"dead replay/reason": deadReasons, "dead purge/reason": deadReasons,
	"undo/reason": "purged deleted expired queue_deleted max_attempts rejected key_dead",
	"order":       "original append head", "undo/order": "original append",
	"status": "running cancelled completed failed",
	"as":     "auto payload message", "role": "admin produce consume read",
	"scheme":    "github pagerduty stripe standard slack shopify generic",
	"log-level": "debug info warn error", "log-format": "text json",
}

const deadReasons = "max_attempts expired rejected key_dead"

// completions declares what the shell offers for arguments and flags of a command.
func (a *app) completions(name string, cmd *cobra.Command) {
	words := strings.Fields(cmd.Use)[1:]
	cmd.ValidArgsFunction = func(c *cobra.Command, args []string, _ string) (
		[]string, cobra.ShellCompDirective) {
		i := len(args)
		if n := len(words); n > 0 && i >= n && strings.Contains(words[n-1], "…") {
			i = n - 1
		}
		if i >= len(words) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		word := strings.Trim(words[i], "[]…")
		if word == "FILE" {
			return nil, cobra.ShellCompDirectiveDefault
		}
		if strings.HasSuffix(name, " create") || strings.HasSuffix(name, " add") {
			return nil, cobra.ShellCompDirectiveNoFileComp // a new name
		}
		return a.names(c, word), cobra.ShellCompDirectiveNoFileComp
	}
	for flag, word := range map[string]string{
		"queue": "QUEUE", "to-queue": "QUEUE", "dead-letter-queue": "QUEUE", "context": "CONTEXT",
	} {
		if cmd.Flags().Lookup(flag) != nil {
			_ = cmd.RegisterFlagCompletionFunc(flag, func(c *cobra.Command, _ []string, _ string) (
				[]string, cobra.ShellCompDirective) {
				return a.names(c, word), cobra.ShellCompDirectiveNoFileComp
			})
		}
	}
	for flag, values := range known {
		of, own := path.Split(flag)
		others := of != name+"/" && (of != "" || known[name+"/"+own] != "")
		if others || cmd.Flags().Lookup(own) == nil {
			continue
		}
		_ = cmd.RegisterFlagCompletionFunc(own, cobra.FixedCompletions(
			strings.Fields(values), cobra.ShellCompDirectiveNoFileComp))
	}
}

// names returns what an argument may be: names that the server knows, none without an answer.
func (a *app) names(cmd *cobra.Command, word string) (names []string) {
	if word == "CONTEXT" {
		all, _ := readContexts()
		return sortedKeys(all.Contexts)
	}
	if word != "QUEUE" && word != "WEBHOOK" && word != "NODE" {
		return nil
	}
	c, err := a.server()
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completeWithin)
	defer cancel()
	switch word {
	case "QUEUE":
		queues, _ := c.Queues(ctx, "")
		for i := range queues {
			names = append(names, queues[i].Name)
		}
	case "WEBHOOK":
		webhooks, _ := c.Webhooks(ctx)
		for i := range webhooks {
			names = append(names, webhooks[i].Name)
		}
	case "NODE":
		cluster, err := c.Cluster(ctx)
		if err != nil {
			cluster = &wire.Cluster{}
		}
		for i := range cluster.Nodes {
			names = append(names, cluster.Nodes[i].ID)
		}
	}
	return names
}
