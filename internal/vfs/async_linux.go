package vfs

import (
	"io"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A direct write is asked of the kernel's asynchronous I/O. The goroutine waits for it in Go's poller, as for a socket, and no thread
// waits in the kernel. Such a thread keeps its P until the runtime's monitor
// takes it away: where there is one P the whole process stands still for that
// time, and is woken on another thread.
//
// On the file systems of asyncSyncs it is the same call in the kernel, but for who
// waits, and it has the same errors. Others may make a write durable only before the
// call returns, which it does at once (FUSE does so). A write through the page cache would be no other than before: it is
// done by the time that it is asked for. A sync could be asked for likewise, at
// some gain, and is not: what traces, delays and fails the syncs of a process, to
// see how it takes that, looks for the usual call.

// async is a context of the kernel's for one operation at a time.
type async struct {
	ctx  uintptr
	done *os.File // an eventfd, which tells of the end
	wait syscall.RawConn

	op    iocb
	buf   []byte // of op: here, it is on no goroutine's stack, which may move
	begun bool
	ended ioEvent
	err   error
	step  func(fd uintptr) bool
}

// iocb and ioEvent are the kernel's (linux/aio_abi.h). What depends on the order
// of bytes is zero.
type iocb struct {
	_      uint64
	_      [2]uint32
	opcode uint16
	_      int16
	fd     uint32
	buf    uint64
	bytes  uint64
	offset int64
	_      uint64
	flags  uint32
	event  uint32 // file descriptor of done
}

type ioEvent struct {
	_, _ uint64
	res  int64
	_    int64
}

const (
	opWrite = 1
	toEvent = 1 // of flags: event is set
)

// asyncs are the contexts that nobody uses. There are as many as there ever were
// operations at a time: a handful, by who writes logs.
var asyncs struct {
	mu   sync.Mutex
	free []*async
	lost []*async // of which no end could be heard: the kernel may have their buffers still
	// none: until then it is not asked again for one. The kernel has none, or who
	// runs this process does not allow it, or there are too many at the moment.
	none time.Time
}

func takeAsync() *async {
	asyncs.mu.Lock()
	defer asyncs.mu.Unlock()
	if k := len(asyncs.free) - 1; k >= 0 {
		a := asyncs.free[k]
		asyncs.free = asyncs.free[:k]
		return a
	}
	if time.Now().Before(asyncs.none) {
		return nil
	}
	a := newAsync()
	if a == nil {
		asyncs.none = time.Now().Add(time.Minute)
	}
	return a
}

// Async tells whether no thread waits for a direct write.
func Async() bool {
	a := takeAsync()
	if a == nil {
		return false
	}
	a.put()
	return true
}

// asyncSyncs tells whether the file system of a file does what O_DSYNC asks for
// also behind an asynchronous write: ext2 to ext4, XFS, Btrfs and F2FS do.
func (f osFile) asyncSyncs() (yes bool) {
	conn, err := f.SyscallConn()
	if err != nil {
		return false
	}
	_ = conn.Control(func(fd uintptr) {
		var st unix.Statfs_t
		if err := unix.Fstatfs(int(fd), &st); err != nil {
			return
		}
		switch uint32(st.Type) {
		case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC:
			yes = true
		}
	})
	return yes
}

func (a *async) put() {
	asyncs.mu.Lock()
	defer asyncs.mu.Unlock()
	if a.err != nil {
		asyncs.lost = append(asyncs.lost, a)
		return
	}
	a.buf = nil
	asyncs.free = append(asyncs.free, a)
}

func newAsync() *async {
	fd, _, e := syscall.Syscall(syscall.SYS_EVENTFD2, 0, syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if e != 0 {
		return nil
	}
	a := &async{done: os.NewFile(fd, "eventfd")}
	a.step = a.next
	var err error
	// What is in the poller has deadlines.
	if a.wait, err = a.done.SyscallConn(); err == nil && a.done.SetDeadline(time.Time{}) == nil {
		if _, _, e := syscall.Syscall(syscall.SYS_IO_SETUP, 1, uintptr(unsafe.Pointer(&a.ctx)), 0); e == 0 {
			return a
		}
	}
	a.done.Close()
	return nil
}

// next begins the operation, and then reports whether it has ended. The poller
// tells of each end anew, whether or not the eventfd is read; and it has
// forgotten those of before when this is called first.
func (a *async) next(event uintptr) bool {
	if !a.begun {
		a.op.event = uint32(event)
		ops := [1]*iocb{&a.op}
		// The scheduler is told: where the file system must look for blocks, or
		// wait for its journal, this may take long.
		n, _, e := syscall.Syscall(syscall.SYS_IO_SUBMIT, a.ctx, 1, uintptr(unsafe.Pointer(&ops)))
		a.begun = e == 0 && n == 1
		return !a.begun
	}
	for {
		n, _, e := syscall.RawSyscall6(syscall.SYS_IO_GETEVENTS, a.ctx, 0, 1, uintptr(unsafe.Pointer(&a.ended)), 0, 0)
		switch {
		case e == syscall.EINTR:
		case e != 0:
			a.err = os.NewSyscallError("io_getevents", e)
			return true
		default:
			return n == 1
		}
	}
}

// writeDirect is WriteAt of a file past the page cache.
func (f directFile) writeDirect(p []byte, off int64) (int, error) {
	if !f.async {
		return f.osFile.WriteAt(p, off)
	}
	n, done, err := f.writeAsync(p, off)
	switch {
	case !done:
		return f.osFile.WriteAt(p, off)
	case err != nil:
		return 0, &os.PathError{Op: "write", Path: f.Name(), Err: err}
	case n < len(p):
		return n, io.ErrShortWrite
	}
	return n, nil
}

// writeAsync is done where something was begun: else the usual call does it, or
// says why not.
func (f osFile) writeAsync(p []byte, off int64) (n int, done bool, err error) {
	if len(p) == 0 {
		return 0, false, nil
	}
	a := takeAsync()
	if a == nil {
		return 0, false, nil
	}
	defer a.put()
	conn, err := f.SyscallConn()
	if err != nil {
		return 0, false, nil
	}
	a.begun, a.buf = false, p
	// Within Control: the descriptor stays this file's until the end.
	err = conn.Control(func(fd uintptr) {
		a.op = iocb{
			opcode: opWrite, fd: uint32(fd), offset: off, flags: toEvent,
			buf: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(a.buf)))), bytes: uint64(len(p)),
		}
		if err := a.wait.Read(a.step); a.err == nil {
			a.err = err
		}
	})
	switch {
	case err != nil || !a.begun:
		return 0, false, nil
	case a.err != nil:
		return 0, true, a.err
	case a.ended.res == -int64(syscall.EINTR):
		return 0, false, nil // as the runtime does with the usual call
	case a.ended.res < 0:
		return 0, true, syscall.Errno(-a.ended.res)
	}
	return int(a.ended.res), true, nil
}
