// Package filekv is a store of keys on a simulated disk, in place of bbolt, which maps real
// files.
package filekv

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"

	"github.com/hashicorp/raft-wal/types"

	"github.com/qlogd/qlogd/log/vfs"
)

// Store keeps its keys in one file, written whole at each change: as with bbolt, a change is on
// disk when it returns, and a crash leaves the old value or the new. It serves as
// raft.Options.OpenKV.
type Store struct {
	fsys vfs.FS
	name string

	mu     sync.Mutex
	values map[string][]byte
}

var _ types.MetaStore = (*Store)(nil)

// Open opens the file called name, or creates it with the first key.
func Open(fsys vfs.FS, name string) (types.MetaStore, error) {
	s := &Store{fsys: fsys, name: name, values: map[string][]byte{}}
	b, err := vfs.ReadFile(fsys, name)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &s.values)
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	return s, nil
}

// GetStable implements types.MetaStore.
func (s *Store) GetStable(key []byte) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.values[string(key)], nil
}

// SetStable implements types.MetaStore.
func (s *Store) SetStable(key, value []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values[string(key)] = slices.Clone(value)
	b, err := json.Marshal(s.values)
	if err != nil {
		return err
	}
	return vfs.WriteFile(s.fsys, s.name, b)
}

// Load implements types.MetaStore.
func (s *Store) Load(string) (state types.PersistentState, err error) {
	if b, _ := s.GetStable([]byte("meta")); b != nil {
		err = json.Unmarshal(b, &state)
	}
	return state, err
}

// CommitState implements types.MetaStore.
func (s *Store) CommitState(state types.PersistentState) error {
	b, err := json.Marshal(state)
	if err != nil {
		return err
	}
	return s.SetStable([]byte("meta"), b)
}

// Close implements types.MetaStore.
func (s *Store) Close() error { return nil }
