package cluster

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
)

// finish is the end of every test of a cluster: what was cut is mended, the
// nodes must come to the same, stop in good order, and leave directories that
// verify and logs that are equal.
func (c *Cluster) finish() {
	if c.net != nil {
		c.net.Mend()
	}
	for _, n := range c.running() {
		if n.Paused() {
			n.Resume()
		}
	}
	if 2*len(c.running()) > len(c.nodes) && !c.opts.NoVerify {
		deadline := patience
		if c.t.Failed() {
			deadline = 5 * time.Second
		}
		if err := c.WaitEqual(deadline); err != nil {
			c.t.Errorf("the nodes do not come to the same: %v\n%s", err, c.describe())
		}
	}
	c.TermAll()
	if c.net != nil {
		c.net.close()
	}
	before := ""
	for _, n := range c.nodes {
		n.transport.CloseIdleConnections()
		if n.opts.NoVerify {
			continue
		}
		if err := n.Verify(); err != nil {
			c.t.Errorf("%s: %v", n.name, err)
		}
		dir := datadir.Path(n.Dir(), datadir.LogDir)
		if _, err := os.Stat(dir); err != nil {
			continue // it never came that far
		}
		if before != "" {
			if err := SameLogs(vfs.OS{}, before, vfs.OS{}, dir); err != nil {
				c.t.Error(err)
			}
		}
		before = dir
	}
	if c.t.Failed() {
		c.keep()
	}
	for _, n := range c.nodes {
		n.log.Close()
	}
}

// keep copies what explains a failure out of the test's folder.
func (c *Cluster) keep() {
	dir, err := os.MkdirTemp("", "qlogd-failed-"+strings.NewReplacer("/", "-", " ",
		"-").Replace(c.t.Name())+"-")
	if err != nil {
		c.t.Log(err)
		return
	}
	for _, n := range c.nodes {
		keepDir(n.opts.Dir, filepath.Join(dir, n.name))
		_ = copyFile(n.log.path, filepath.Join(dir, n.name+".log"))
		c.t.Logf("%s's log ends with\n%s", n.name, n.log.tail(15))
	}
	c.t.Logf("data directories and logs are kept in %s", dir)
}

func copyFile(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o600)
}

// keepDir moves a data directory, which can be large, out of what is removed.
func keepDir(from, to string) {
	if os.Rename(from, to) != nil {
		_ = os.CopyFS(to, os.DirFS(from))
	}
}

// SameLogs compares two event logs byte for byte, from the later of their
// beginnings to the earlier of their ends.
func SameLogs(a vfs.FS, aDir string, b vfs.FS, bDir string) error {
	x, err := log.OpenReadOnly(log.Options{FS: a, Dir: aDir})
	if err != nil {
		return err
	}
	defer x.Close()
	y, err := log.OpenReadOnly(log.Options{FS: b, Dir: bDir})
	if err != nil {
		return err
	}
	defer y.Close()
	if len(x.Segments()) == 0 || len(y.Segments()) == 0 {
		return nil // one of them never came that far
	}
	first := max(x.Segments()[0].First, y.Segments()[0].First)
	common := min(x.Head(), y.Head())
	if common < first {
		return nil
	}
	segments, err := x.SegmentsTo(common)
	if err != nil {
		return err
	}
	for i, s := range segments {
		if s.First < first {
			continue
		}
		p, err := vfs.ReadFile(a, path.Join(aDir, s.Name))
		if err != nil {
			return err
		}
		q, err := vfs.ReadFile(b, path.Join(bDir, s.Name))
		if err != nil {
			return err
		}
		if i == len(segments)-1 {
			p, q = p[:min(s.Size, int64(len(p)))], q[:min(s.Size, int64(len(q)))]
		}
		if !bytes.Equal(p, q) {
			i := 0
			for i < min(len(p), len(q)) && p[i] == q[i] {
				i++
			}
			return fmt.Errorf("segment %s of %s and %s differs at byte %d of %d and %d, "+
				"below block %d", s.Name, aDir, bDir, i, len(p), len(q), common)
		}
	}
	return nil
}
