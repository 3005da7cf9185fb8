package launcher

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/goddp/goddp/launcher/internal/failure"
)

// request is a message from the agent to its reaper. Exactly one field is set.
type request struct {
	// Discard is the path of a folder that the reaper removes if the agent dies. The
	// folder need not exist yet.
	Discard []byte         `json:",omitempty"`
	Start   *startRequest  `json:",omitempty"`
	Signal  *signalRequest `json:",omitempty"`
	// Group is the process group of a worker that has ended, of which the reaper kills what is left.
	Group   int            `json:",omitempty"`
	Orphans *orphanRequest `json:",omitempty"`
}

// startRequest asks for the start of a worker. The files that come with the request are
// the worker's stdin if it has one, its stdout, its stderr, and the files for descriptors 3 and
// above. Texts are byte slices because they may hold any byte except 0.
type startRequest struct {
	Local     int
	Replaces  bool // the worker replaces one that has ended; if it cannot be started, the others go on
	HasStdin  bool
	InSession bool // the worker leads a session, not only a process group
	Path, Dir []byte
	Args, Env [][]byte
}

// signalRequest asks the reaper to signal the process groups of those workers in Locals
// that have not ended.
type signalRequest struct {
	Locals []int
	Signal syscall.Signal
}

// orphanRequest asks the reaper to remove the processes that the workers of an attempt
// left behind. All workers must have ended. A second request of the same attempt may only
// add Kill.
type orphanRequest struct {
	Attempt  int           // the attempt's number, as the agent counts: larger than the previous attempt's
	Kill     bool          // use SIGKILL instead of SIGTERM
	Interval time.Duration // the longest pause between two searches
}

// report is a message from the reaper to its agent. Exactly one field is set.
type report struct {
	Started *startReport `json:",omitempty"`
	// Exited says how a worker ended that the reaper has waited for: its PID, Status and time Exited.
	Exited  *failure.Failure `json:",omitempty"`
	Orphans *orphanReport    `json:",omitempty"`
}

// startReport answers a startRequest. After a failure the reaper drops further start
// requests without an answer, until an orphanRequest is done.
type startReport struct {
	Local int
	PID   int           // 0 if the start failed
	Errno syscall.Errno // the system error of the failure, if it has one
	Error string        // the text of the failure
}

// err returns the failure as an error that works with errors.Is.
func (r *startReport) err() error {
	if r.Errno == 0 {
		return errors.New(r.Error)
	}
	return &remoteError{r.Error, r.Errno}
}

// remoteError is an error that another process returned.
type remoteError struct {
	text  string
	errno syscall.Errno
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.errno }

// orphanReport answers the orphanRequests of an attempt.
type orphanReport struct {
	Attempt   int
	Survivors []int  // processes that survived SIGKILL
	Error     string // why there may be further survivors; "" if there are none
}

const (
	// maxMessage is the largest size of a message. The kernel accepts a few megabytes of
	// arguments and environment, and base64 adds a third.
	maxMessage = 64 << 20
	// maxFiles is the largest number of files that a message carries.
	maxFiles = 16
)

// messageConn carries messages over a stream socket. A message is its length in 4 bytes,
// to which its files are attached, followed by its JSON.
type messageConn struct {
	*net.UnixConn
	mu sync.Mutex // held while a message is written
}

// newMessageConn returns a connection over the socket f. It closes f before it returns, even on an error; the
// connection has its own descriptor.
func newMessageConn(f *os.File) (*messageConn, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	unixConn, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, fmt.Errorf("%s is a %T, not a unix socket", f.Name(), c)
	}
	return &messageConn{UnixConn: unixConn}, nil
}

// socketPair returns two sockets that are connected to each other.
func socketPair() (a, b *os.File, err error) {
	// No process may be started before the descriptors are marked close-on-exec.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	syscall.CloseOnExec(fds[0])
	syscall.CloseOnExec(fds[1])
	return os.NewFile(uintptr(fds[0]), "agent"), os.NewFile(uintptr(fds[1]), "reaper"), nil
}

// send writes a message and copies of files.
func (c *messageConn) send(message any, files ...*os.File) error {
	body, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if len(body) > maxMessage || len(files) > maxFiles {
		return fmt.Errorf("sending a message of %d bytes with %d files: want at most %d bytes and %d files", len(body), len(files), maxMessage, maxFiles)
	}
	header := binary.LittleEndian.AppendUint32(nil, uint32(len(body)))
	var rights []byte
	if len(files) > 0 {
		var fds []int
		for _, f := range files {
			fds = append(fds, int(f.Fd()))
		}
		rights = syscall.UnixRights(fds...)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n, _, err := c.WriteMsgUnix(header, rights, nil)
	runtime.KeepAlive(files)
	if err == nil {
		_, err = c.Write(append(header[n:], body...))
	}
	return err
}

// receive reads a message and its files, which the caller must close.
func (c *messageConn) receive(message any) (files []*os.File, err error) {
	defer func() {
		if err != nil {
			closeAll(files)
			files = nil
		}
	}()
	header, control := make([]byte, 4), make([]byte, syscall.CmsgSpace(4*maxFiles))
	n, controlSize, _, _, err := c.ReadMsgUnix(header, control)
	if err != nil {
		return nil, err
	}
	if files, err = filesOf(control[:controlSize]); err != nil {
		return files, err
	}
	if _, err := io.ReadFull(c, header[n:]); err != nil {
		return files, err
	}
	size := binary.LittleEndian.Uint32(header)
	if size > maxMessage {
		return files, fmt.Errorf("received a message of %d bytes, want at most %d", size, maxMessage)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(c, body); err != nil {
		return files, err
	}
	return files, json.Unmarshal(body, message)
}

// filesOf returns the files in the control data of a message.
func filesOf(control []byte) (files []*os.File, err error) {
	messages, err := syscall.ParseSocketControlMessage(control)
	if err != nil {
		return nil, err
	}
	for i := range messages {
		fds, err := syscall.ParseUnixRights(&messages[i])
		if err != nil {
			return files, err
		}
		for _, fd := range fds {
			syscall.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "inherited"))
		}
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// bytesOf and stringsOf convert texts without loss. JSON strings would lose bytes that
// are not UTF-8.
func bytesOf(texts []string) [][]byte {
	b := make([][]byte, len(texts))
	for i, text := range texts {
		b[i] = []byte(text)
	}
	return b
}

func stringsOf(b [][]byte) []string {
	texts := make([]string, len(b))
	for i := range b {
		texts[i] = string(b[i])
	}
	return texts
}
