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
)

// request is what an agent tells its reaper. One field is set.
type request struct {
	// Discard is a folder that the reaper removes if the agent dies. It need not
	// exist yet.
	Discard []byte         `json:",omitempty"`
	Start   *startRequest  `json:",omitempty"`
	Signal  *signalRequest `json:",omitempty"`
	Orphans *orphanRequest `json:",omitempty"`
}

// startRequest starts a worker. Its stdout, its stderr, and then the files that it
// inherits from descriptor 3 on, come with the request. Its texts may hold any byte but 0.
type startRequest struct {
	Local     int
	Path, Dir []byte
	Args, Env [][]byte
}

// signalRequest sends a signal to the process groups of workers that have not ended.
type signalRequest struct {
	Locals []int
	Signal syscall.Signal
}

// orphanRequest removes what the workers of an attempt, which have all ended, left
// behind. A second request of the same attempt may only add Kill.
type orphanRequest struct {
	Attempt  int
	Kill     bool          // with SIGKILL, else with SIGTERM
	Interval time.Duration // between two looks, at most
}

// report is what a reaper tells its agent. One field is set.
type report struct {
	Started *startReport  `json:",omitempty"`
	Exited  *exitReport   `json:",omitempty"`
	Orphans *orphanReport `json:",omitempty"`
}

// startReport answers a startRequest. After a failure the reaper drops the start
// requests that follow, without an answer, up to the next orphanRequest.
type startReport struct {
	Local int
	PID   int           // 0 on a failure
	Errno syscall.Errno // the failure's, if it has one
	Error string        // the failure
}

// err is the failure, as errors.Is knows it.
func (r *startReport) err() error {
	if r.Errno == 0 {
		return errors.New(r.Error)
	}
	return &remoteError{r.Error, r.Errno}
}

// remoteError is an error that another process met.
type remoteError struct {
	text  string
	errno syscall.Errno
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.errno }

// exitReport says that a worker has ended and has been waited for.
type exitReport struct {
	PID    int
	Status Status
	At     time.Time
}

// orphanReport answers the orphanRequests of an attempt.
type orphanReport struct {
	Attempt   int
	Survivors []int  // of SIGKILL
	Error     string // why there may be more; "" if there are no more
}

const (
	// maxMessage bounds a message. The kernel takes a few megabytes of arguments and
	// environment, and base64 adds a third.
	maxMessage = 64 << 20
	// maxFiles bounds the files of a message.
	maxFiles = 16
)

// messageConn carries messages over a stream socket: the length of the message in 4
// bytes, with which its files come, and its JSON.
type messageConn struct {
	*net.UnixConn
	mu sync.Mutex // held while a message is written
}

// newMessageConn returns the connection over f, a socket, and closes f.
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
	// No process may be started before the descriptors are marked.
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
		return fmt.Errorf("a message of %d bytes and %d files; at most %d and %d are possible", len(body), len(files), maxMessage, maxFiles)
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
		return files, fmt.Errorf("a message of %d bytes; at most %d are possible", size, maxMessage)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(c, body); err != nil {
		return files, err
	}
	return files, json.Unmarshal(body, message)
}

// filesOf returns the files that came with a message.
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

// bytesOf and stringsOf keep every byte of texts, which JSON strings do not.
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
