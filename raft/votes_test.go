package raft

import (
	"bytes"
	"errors"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/filekv"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// voteStore returns a StableStore on the disk.
func voteStore(t *testing.T, disk *memdisk.Disk) *votes {
	t.Helper()
	kv, err := filekv.Open(disk, "/votes")
	require.NoError(t, err)
	v, err := readVotes(kv, "", noDisk())
	require.NoError(t, err)
	return v
}

func noDisk() *disk { return unwatched(Options{}.withDefaults()) }

// persistVote is hashicorp/raft's.
func persistVote(v *votes, term uint64, candidate string) error {
	if err := v.SetUint64([]byte(keyLastVoteTerm), term); err != nil {
		return err
	}
	return v.Set([]byte(keyLastVoteCand), []byte(candidate))
}

func wantVote(t *testing.T, v *votes, term uint64, candidate string) {
	t.Helper()
	gotTerm, err := v.GetUint64([]byte(keyLastVoteTerm))
	require.NoError(t, err)
	got, err := v.Get([]byte(keyLastVoteCand))
	require.NoError(t, err)
	assert.True(t, gotTerm == term && string(got) == candidate,
		"the vote is %q in term %d, not %q in %d", got, gotTerm, candidate, term)
}

func TestVotes(t *testing.T) {
	disk := memdisk.New()
	v := voteStore(t, disk)
	wantVote(t, v, 0, "")
	require.NoError(t, v.SetUint64([]byte(keyCurrentTerm), 7))
	require.NoError(t, persistVote(v, 7, "n2"))
	// A crash between hashicorp/raft's two calls leaves the earlier vote whole.
	require.NoError(t, v.SetUint64([]byte(keyLastVoteTerm), 8))
	wantVote(t, v, 7, "n2")
	v = voteStore(t, disk)
	wantVote(t, v, 7, "n2")
	if term, err := v.GetUint64([]byte(keyCurrentTerm)); err != nil || term != 7 {
		t.Errorf("term %d, %v", term, err)
	}
	// A candidate may be empty bytes, but hashicorp/raft tells nil apart.
	require.NoError(t, persistVote(v, 8, ""))
	if got, _ := v.Get([]byte(keyLastVoteCand)); got == nil {
		t.Error("an empty candidate came back as none")
	}
}

// Term and candidate of a vote are never mixed: after a crash anywhere there is
// the old vote or the new, and the new one wherever it was answered.
func TestVoteCrash(t *testing.T) {
	for at := 1; ; at++ {
		disk := memdisk.New()
		v := voteStore(t, disk)
		require.NoError(t, persistVote(v, 5, "n2"))
		from := disk.Ops()
		disk.CrashAt(from + at)
		err := persistVote(v, 6, "n3")
		if err == nil && !disk.Crashed() {
			return // walked through all of it
		}
		for loss := memdisk.LoseAll; loss <= memdisk.LoseRandom; loss++ {
			after := voteStore(t, disk.CrashWith(loss, rng(at)))
			term, _ := after.GetUint64([]byte(keyLastVoteTerm))
			if err == nil || term == 6 {
				wantVote(t, after, 6, "n3")
			} else {
				wantVote(t, after, 5, "n2")
			}
		}
	}
}

func TestVoteFlippedBit(t *testing.T) {
	kv := &mapKV{}
	v := &votes{kv: kv, disk: noDisk()}
	require.NoError(t, persistVote(v, 5, "n2"))
	good := kv.m[keyVote]
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 0x10
		kv.m[keyVote] = bad
		if _, err := readVotes(kv, "", noDisk()); err == nil {
			t.Errorf("byte %d: a flipped bit went unseen", i)
		}
	}
	// A value does not pass for another key's.
	kv.m = map[string][]byte{keyCurrentTerm: good}
	if _, err := readVotes(kv, "", noDisk()); err == nil {
		t.Error("the vote passed for the term")
	}
}

// A vote counts only when it is written down that it was given: also for who asks
// again, or at the same time over another connection.
func TestVoteIsNotedBeforeItCounts(t *testing.T) {
	kv := &mapKV{err: errors.New("EIO")}
	v := &votes{kv: kv, disk: noDisk()}
	e, err := openEvidence(v)
	require.NoError(t, err)
	for range 2 {
		assert.True(t, e.Voted("n2", 7) != nil, "it counts, and is not on disk")
	}
	kv.err, v.disk = nil, noDisk() // as after a restart
	require.NoError(t, e.Voted("n2", 7))
	if e, err = openEvidence(v); err != nil || e.Get("n2").VoteTerm != 7 {
		t.Errorf("%+v, %v", e.Get("n2"), err)
	}
}

type mapKV struct {
	m   map[string][]byte
	err error
}

func (k *mapKV) GetStable(key []byte) ([]byte, error) { return k.m[string(key)], nil }
func (k *mapKV) Close() error                         { return nil }
func (k *mapKV) SetStable(key, value []byte) error {
	if k.err != nil {
		return k.err
	}
	if k.m == nil {
		k.m = map[string][]byte{}
	}
	k.m[string(key)] = bytes.Clone(value)
	return nil
}
