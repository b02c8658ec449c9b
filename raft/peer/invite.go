package peer

import (
	"encoding/json"
	"fmt"
)

// CallInvite is the call by which the leader of a cluster tells a node that was
// announced to it, and has not come, where the cluster is; an Invitation as JSON.
//
// It is a hint whom to ask, and no more: what the node then does follows from
// what it is answered there, as if its own list of addresses had led it there.
const CallInvite = "cluster.invite"

// Invitation names whom the cluster expects.
type Invitation struct {
	Node string `json:"node"`
	Raft string `json:"raft"` // host:port
}

// TakeInvitation reads an invitation, and refuses, with an *Error, one that is not
// for this node at this address, or from a node without a cluster.
func TakeInvitation(self, from Identity, body []byte) error {
	var i Invitation
	switch err := json.Unmarshal(body, &i); {
	case err != nil || from.Cluster == "" || from.Raft == "":
		return &Error{Code: "invalid", Detail: "not an invitation"}
	case i.Node != self.Node:
		return &Error{Code: "not_invited", Detail: fmt.Sprintf("this is node %s, and %s is expected", self.Node, clip(i.Node))}
	case i.Raft != self.Raft:
		return &Error{Code: "not_invited", Detail: fmt.Sprintf("this node wants to be reached at %s, and is expected at %s: is raft-advertise right?", self.Raft, clip(i.Raft))}
	}
	return nil
}
