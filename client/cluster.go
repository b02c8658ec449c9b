package client

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/qlogd/qlogd/api/wire"
)

// Cluster returns the cluster as the node that is asked knows it, also while
// there is no leader.
func (c *Client) Cluster(ctx context.Context, opts ...CallOption) (*wire.Cluster, error) {
	out := &wire.Cluster{}
	return out, c.do(ctx, http.MethodGet, "/v1/cluster", nil, out, opts...)
}

// AddNode takes a node in. created is false where it was in with the same data.
func (c *Client) AddNode(ctx context.Context, n wire.NewNode, opts ...CallOption) (node *wire.Node, created bool, err error) {
	node = &wire.Node{}
	status, err := c.send(ctx, &call{method: http.MethodPost, path: "/v1/cluster/nodes", body: n, query: url.Values{}}, node, opts)
	return node, status == http.StatusCreated, err
}

// RemoveNode takes a node out for ever; with force also where the voters left
// are no majority that can be reached.
func (c *Client) RemoveNode(ctx context.Context, id string, force bool, opts ...CallOption) error {
	query := url.Values{}
	if force {
		query.Set("force", "true")
	}
	// Where an answer was lost, another node, which does not know the key, says
	// that there is no such node: so it was done.
	_, err := c.send(ctx, &call{method: http.MethodDelete, path: "/v1/cluster/nodes/" + url.PathEscape(id), query: query, done: ErrNodeNotFound}, nil, opts)
	return err
}

// TransferLeadership hands leadership over, to a voter or, for "", to the one
// that is furthest. It returns who leads, "" where that is not known yet.
func (c *Client) TransferLeadership(ctx context.Context, to string, opts ...CallOption) (string, error) {
	var in wire.TransferRequest
	if to != "" {
		in.To = &to
	}
	var out wire.Transferred
	err := c.do(ctx, http.MethodPost, "/v1/cluster/transfer-leadership", in, &out, opts...)
	return out.LeaderID, err
}

// Snapshot lets every node take a checkpoint, and returns their indexes by node.
func (c *Client) Snapshot(ctx context.Context, opts ...CallOption) (map[string]uint64, error) {
	var out wire.ClusterSnapshot
	_, err := c.send(ctx, &call{method: http.MethodPost, path: "/v1/cluster/snapshot", query: url.Values{}, patience: time.Minute}, &out, opts)
	return out.Indexes, err
}
