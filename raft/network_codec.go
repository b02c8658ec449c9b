package raft

// What replicas say to each other is what hashicorp/raft's NetworkTransport
// says, to the byte: older nodes speak through that. It is written and read by
// hand here, because reflection over each entry costs more than the entry.
//
//	request   type (0 append, 1 vote, 2 snapshot, 3 timeout now, 4 pre-vote)
//	          map: the fields by name, those of RPCHeader among them
//	          for a snapshot, as many bytes as its Size says
//	answer    string, the error: "" if none
//	          nil, or a map as above
//
// in msgpack as go-msgpack v2 writes it: names rise, lengths and numbers are as
// short as they get, strings and bytes are both of the older kind (without the
// codes of str 8 and bin), a nil slice is nil, and a time is what
// time.Time.MarshalBinary returns.
//
// Read is more than that: names in any order, numbers and bytes of any code, times
// in go-msgpack's newer form, and fields that are not known here, if their values
// are plain. But nothing that another node sends is believed: lengths are held
// against the bounds below before anything is done by them, and where much is
// announced, room is made as the bytes come.
const (
	// maxRequest is how long a request may be: not counted what follows an
	// InstallSnapshot. A leader sends entries of 16 MiB at once, or one alone of
	// up to 48 MiB, the largest command; what is around them is some hundred
	// bytes each. It comes with the same again for ever if that does not pass, so
	// there is room to spare.
	maxRequest = 64 << 20

	maxAnswer  = 1 << 20
	maxError   = 64 << 10
	maxPairs   = 64   // of a map
	maxName    = 64   // bytes of a field's name
	maxEntries = 1024 // of a request; hashicorp/raft allows no more for MaxAppendEntries
	maxSame    = 1024 // bytes of what is kept to be compared with what comes next

	// believed is how many bytes are made room for because they were announced.
	believed = 1 << 20
)

// rpcType is the first byte of a request.
type rpcType byte

const (
	rpcAppendEntries rpcType = iota
	rpcRequestVote
	rpcInstallSnapshot
	rpcTimeoutNow
	rpcRequestPreVote
)
