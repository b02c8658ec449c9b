// Command bench measures the real program from outside: it starts qlogd on free
// ports and fresh directories, puts load on it through the public client, and
// prints what it saw. docs/performance.md says what each scenario shows.
//
//	go run . -bin ../bin/qlogd group flat memory checkpoint restart verify
//
// What is compared is measured in turns within one run, several rounds each;
// what is printed are medians and the extremes. A run begins and ends with a
// calibration, for the machine is rarely ours alone.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// suite is one run.
type suite struct {
	bin      string
	dir      string // everything is written below it
	rounds   int
	messages int
	size     int // bytes of a payload
	keys     int
	slice    time.Duration // of one measurement of a round
	env      []string      // of the server
}

var scenarios = []struct {
	name string
	run  func(context.Context, *suite) error
}{
	{"group", group}, {"flat", flat}, {"memory", memory}, {"checkpoint", checkpoint},
	{"restart", restart}, {"verify", verify},
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) > 0 && args[0] == "profile" {
		return profile(args[1:])
	}
	s := &suite{}
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.StringVar(&s.bin, "bin", "../bin/qlogd", "the program to measure")
	tmp := fs.String("dir", os.TempDir(), "where data directories are made, and removed again")
	fs.IntVar(&s.rounds, "rounds", 3, "how often each measurement is taken, in turns")
	fs.IntVar(&s.messages, "messages", 1_000_000, "how many messages wait in the scenarios with many")
	fs.IntVar(&s.size, "size", 1024, "bytes of a payload")
	fs.IntVar(&s.keys, "keys", 100_000, "how many keys they have where there are many")
	fs.DurationVar(&s.slice, "slice", 3*time.Second, "how long one measurement takes")
	env := fs.String("env", "", "NAME=value of the server's environment, with commas between")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *env != "" {
		s.env = strings.Split(*env, ",")
	}
	var err error
	if s.bin, err = filepath.Abs(s.bin); err != nil {
		return err
	}
	if s.dir, err = os.MkdirTemp(*tmp, "qlogd-bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(s.dir)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	names := fs.Args()
	if len(names) == 0 {
		names = []string{"group", "flat", "memory", "checkpoint", "restart", "verify"}
	}
	for _, name := range names {
		found := false
		for _, sc := range scenarios {
			if sc.name != name {
				continue
			}
			found = true
			if err := calibrate(s.dir); err != nil {
				return err
			}
			fmt.Printf("\n== %s\n", name)
			began := time.Now()
			if err := sc.run(ctx, s); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			fmt.Printf("   (took %s)\n", time.Since(began).Round(time.Second))
		}
		if !found {
			return fmt.Errorf("no scenario %q", name)
		}
	}
	return calibrate(s.dir)
}
