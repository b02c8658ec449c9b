package store

import (
	"bytes"

	bolt "go.etcd.io/bbolt"
)

// OperationsWith returns what was carried out under all request keys that begin
// with prefix, oldest first within each.
func (s *Store) OperationsWith(prefix []byte) (out []Operation, err error) {
	err = s.view(func(tx *bolt.Tx, _ *state) error {
		c := tx.Bucket(bucketOperations).Cursor()
		for k, v := c.Seek(prefix); bytes.HasPrefix(k, prefix); k, v = c.Next() {
			v, err := open(k, v)
			if err != nil {
				return err
			}
			o, err := decodeOperation(k, v)
			if err != nil {
				return err
			}
			out = append(out, o)
		}
		return nil
	})
	return out, err
}
