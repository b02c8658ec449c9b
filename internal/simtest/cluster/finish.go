package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// equalDeadline is how long the nodes may take until all have applied the same,
// once nothing is in their way.
const equalDeadline = 60 * time.Second

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
		deadline := equalDeadline
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
	var dirs []string
	for _, n := range c.nodes {
		n.transport.CloseIdleConnections()
		if n.opts.NoVerify {
			continue
		}
		if err := n.Verify(); err != nil {
			c.t.Errorf("%s: %v", n.name, err)
		}
		dirs = append(dirs, n.opts.Dir)
	}
	if err := CompareLogs(dirs...); err != nil {
		c.t.Error(err)
	}
	if c.t.Failed() {
		c.keep()
	}
	for _, n := range c.nodes {
		n.log.Close()
	}
}

// keep copies what tells about a failure out of the test's folder.
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

// CompareLogs compares the event logs of stopped nodes byte for byte: the
// segments that two of them have must be the same, but that the newest one of
// the one that is behind may end earlier. A directory whose history begins later
// is compared from there on.
func CompareLogs(dirs ...string) error {
	var errs []error
	for i := range dirs {
		for j := range i {
			if err := compareLogs(dirs[j], dirs[i]); err != nil {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

func segments(dir string) ([]string, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "log", "*.seg"))
	for i := range paths {
		paths[i] = filepath.Base(paths[i])
	}
	slices.Sort(paths)
	return paths, err
}

func compareLogs(a, b string) error {
	as, err := segments(a)
	if err != nil {
		return err
	}
	bs, err := segments(b)
	if err != nil {
		return err
	}
	if len(as) == 0 || len(bs) == 0 {
		return nil // one of them never came so far
	}
	// From the later of the two beginnings to the earlier of the two ends they
	// are cut at the same places: by content, not by a node's own opinion.
	from, to := max(as[0], bs[0]), min(as[len(as)-1], bs[len(bs)-1])
	if from > to {
		return nil // the one's history begins where the other's ends
	}
	within := func(all []string) []string {
		return slices.DeleteFunc(slices.Clone(all), func(s string) bool {
			return s < from ||
				s > to
		})
	}
	if x, y := within(as), within(bs); !slices.Equal(x, y) {
		return fmt.Errorf("the logs of %s and %s have other segments between %s and %s:\n%v\n%v", a,
			b, from, to, x, y)
	}
	for _, s := range within(as) {
		if err := compareFiles(filepath.Join(a, "log", s), filepath.Join(b, "log", s),
			s == as[len(as)-1], s == bs[len(bs)-1]); err != nil {
			return err
		}
	}
	return nil
}

// compareFiles compares two files to the end of the shorter one, which must be
// one that is still written to.
func compareFiles(a, b string, aOpen, bOpen bool) error {
	x, err := os.Open(a)
	if err != nil {
		return err
	}
	defer x.Close()
	y, err := os.Open(b)
	if err != nil {
		return err
	}
	defer y.Close()
	p, q := make([]byte, 1<<20), make([]byte, 1<<20)
	for at := int64(0); ; {
		n, xerr := io.ReadFull(x, p)
		m, yerr := io.ReadFull(y, q)
		k := min(n, m)
		if !bytes.Equal(p[:k], q[:k]) {
			i := 0
			for p[i] == q[i] {
				i++
			}
			return fmt.Errorf("%s and %s differ at byte %d", a, b, at+int64(i))
		}
		at += int64(k)
		switch {
		case n < m && !aOpen:
			return fmt.Errorf("%s is sealed and ends at byte %d, where %s goes on", a, at, b)
		case m < n && !bOpen:
			return fmt.Errorf("%s is sealed and ends at byte %d, where %s goes on", b, at, a)
		case xerr != nil || yerr != nil:
			for _, err := range []error{xerr, yerr} {
				if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
					return err
				}
			}
			return nil
		}
	}
}
