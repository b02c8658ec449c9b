package console

import (
	"github.com/dustin/go-humanize"

	"github.com/qlogd/qlogd/api/wire"
)

var attentionPages = []route{{"GET attention", "attention", (*page).attention}}

const attentionShown = 100 // items of a severity, unless all are asked for

// attention lists what may need an operator, the worst first.
func (p *page) attention() error {
	items, err := p.api.Attention(p.ctx, p.now())
	if err != nil {
		return err
	}
	var groups []attentionGroup
	for _, item := range items {
		if n := len(groups); n == 0 || groups[n-1].Severity != item.Severity {
			groups = append(groups, attentionGroup{item.Severity, severities[item.Severity], nil, 0})
		}
		last := &groups[len(groups)-1]
		if len(last.Items) == attentionShown && p.Param("all") == "" {
			last.More++
			continue
		}
		last.Items = append(last.Items, p.attentionRow(item))
	}
	return p.show("attention", "Attention", groups)
}

// attentionGroup has the items of one severity.
type attentionGroup struct {
	Severity int
	Title    string
	Items    []attentionRow
	More     int // that are not shown
}

// attentionRow is an item with what it is about and what to do.
type attentionRow struct {
	wire.AttentionItem
	About, Href  string
	Text, Advice string
}

var severities = map[int]string{1: "Something does not work", 2: "Look at it soon", 3: "Good to know"}

func (p *page) attentionRow(item wire.AttentionItem) attentionRow {
	row := attentionRow{AttentionItem: item, Text: item.Detail, Advice: advice[item.Kind]}
	if item.Node == nil && item.Kind != "full" && item.Kind != "almost_full" {
		row.Text = humanize.Comma(item.Count) + " " + item.Detail
	}
	queue := deref(item.Queue)
	switch {
	case item.Webhook != nil && (queue == "" || p.May("admin", "")):
		row.About, row.Href = *item.Webhook, p.Link("webhooks", *item.Webhook)
	case item.Node != nil:
		row.About, row.Href = *item.Node, p.Link("cluster")
		if item.Kind == "full" {
			row.Advice = advice["disk_full"]
		}
	case item.Kind == "dead_letters_growing" || item.Kind == "key_held":
		row.About, row.Href = queue, p.Link("queues", queue, "dead")
	case queue != "":
		row.About, row.Href = queue, p.Link("queues", queue)
	}
	return row
}

// advice says what to do about each kind of item.
var advice = map[string]string{
	"node_damaged": "The node fetches the file from another one by itself. If this stays, check its " +
		"disk and its log lines.",
	"node_unconfirmed": "Start the silent voters. Once they confirm that the node's directory is no " +
		"old copy, this ends by itself.",
	"node_differs": "Do not restart the node and delete nothing. Compare the logs first: " +
		"qlogd replay --diff --against.",
	"node_lagging": "Check that the node runs, that the others reach it, and that its disk keeps up.",
	"disk_full": "Free space on the node's disk, or keep history for a shorter time. Produce calls " +
		"are refused where the leader's disk is full.",
	"full": "Start more workers, purge what is not needed, or raise the limit. Produce calls are " +
		"refused until there is room.",
	"almost_full": "Start more workers or raise the limit, before produce calls are refused.",
	"key_held": "Replay the dead letter that holds the key, or purge it. Its key waits until then, " +
		"other keys go on.",
	"dead_letters_growing": "Look at their errors by group, fix the cause, and replay them.",
	"nobody_leasing":       "Start workers of this queue, or pause it if that is intended.",
	"leases_expiring": "Workers die, or need longer than the lease: let them extend it, or raise " +
		"delivery.lease_ms.",
	"webhook_refused": "Look at the reasons of its last requests. Often a secret has changed, or the " +
		"sender an address.",
	"last_attempt": "They die if they fail once more. Look at their errors, or raise " +
		"delivery.max_attempts in time.",
}
