package raft

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"sync"
	"time"

	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	waltypes "github.com/hashicorp/raft-wal/types"
	"go.etcd.io/bbolt"

	"github.com/qlogd/qlogd/log/vfs"
)

// boltKV is raft-boltdb as a KV.
type boltKV struct{ *raftboltdb.BoltStore }

func openBolt(file string) (KV, error) {
	s, err := raftboltdb.New(raftboltdb.Options{
		Path: file,
		// A second process would wait for ever for the file's lock.
		BoltOptions: &bbolt.Options{Timeout: time.Second},
	})
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", file, err)
	}
	return boltKV{s}, nil
}

func (b boltKV) Get(key []byte) ([]byte, error) {
	v, err := b.BoltStore.Get(key)
	if errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return nil, nil
	}
	return v, err
}

// FileKV is a KV in one file of fsys, written whole at each Set. bbolt maps real
// files and so cannot stand on a disk that forgets; this one can, with the same
// durability, and tests put it in bbolt's place (Options.OpenKV).
func FileKV(fsys vfs.FS, name string) (KV, error) {
	k := &fileKV{fsys: fsys, name: name, values: map[string][]byte{}}
	b, err := vfs.ReadFile(fsys, name)
	if errors.Is(err, fs.ErrNotExist) {
		return k, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &k.values)
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	return k, nil
}

type fileKV struct {
	fsys vfs.FS
	name string

	mu     sync.Mutex
	values map[string][]byte
}

func (k *fileKV) Get(key []byte) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.values[string(key)], nil
}

func (k *fileKV) Set(key, value []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.values[string(key)] = append([]byte{}, value...)
	b, err := json.Marshal(k.values)
	if err != nil {
		return err
	}
	return vfs.WriteFile(k.fsys, k.name, b)
}

func (k *fileKV) Close() error { return nil }

// kvMeta is raft-wal's MetaStore on a KV, for tests as FileKV is.
type kvMeta struct{ kv KV }

var _ waltypes.MetaStore = kvMeta{}

func (m kvMeta) Load(string) (state waltypes.PersistentState, err error) {
	b, err := m.kv.Get([]byte("meta"))
	if err != nil || b == nil {
		return state, err
	}
	return state, json.Unmarshal(b, &state)
}

func (m kvMeta) CommitState(state waltypes.PersistentState) error {
	b, err := json.Marshal(state)
	if err != nil {
		return err
	}
	return m.kv.Set([]byte("meta"), b)
}

func (m kvMeta) GetStable(key []byte) ([]byte, error) { return m.kv.Get(key) }
func (m kvMeta) SetStable(key, value []byte) error    { return m.kv.Set(key, value) }
func (m kvMeta) Close() error                         { return m.kv.Close() }

func join(dir, name string) string { return path.Join(dir, name) }
