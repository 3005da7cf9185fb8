package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/goddp/goddp/internal/files"
	"github.com/goddp/goddp/internal/handshake"
)

// lockName is the name of the file that the holder of a folder locks. It contains the [holder].
const lockName = ".lock"

// lockPoll is the time between two attempts to lock a folder.
const lockPoll = 50 * time.Millisecond

// holder is a writer of a folder: rank 0's [Manager], or [Import].
type holder struct {
	ID    string    `json:"id"` // differs between holders
	Job   string    `json:"job"`
	Host  string    `json:"host"`
	PID   int       `json:"pid"`
	Since time.Time `json:"since"`
}

// newHolder returns a holder in this process.
func newHolder(id string) holder {
	host, _ := os.Hostname()
	return holder{id, handshake.JobFromEnv(0).ID, host, os.Getpid(), time.Now()}
}

func (h holder) String() string {
	if h.ID == "" {
		return "another process"
	}
	job := ""
	if h.Job != "" {
		job = fmt.Sprintf(" of job %q", h.Job)
	}
	return fmt.Sprintf("process %d%s on %s (since %s)", h.PID, job, h.Host, h.Since.Format(time.RFC3339))
}

// folderLock keeps other holders out of a folder. When a process ends, the operating system releases its
// lock. When a host crashes, a network file system keeps its locks for a while before it releases them.
type folderLock struct {
	holder
	file *os.File
	err  error // why the file system does not support locks; nil if it does
}

// lockFolder locks a folder for h. It calls the function patience at each attempt, and waits for the present holder
// as long as patience returns. If the file system has no locks, h becomes the holder at once, and the lock's field
// err says why.
func lockFolder(dir string, h holder, patience func(present holder) time.Duration) (*folderLock, error) {
	for start := time.Now(); ; time.Sleep(lockPoll) {
		l, err := tryLock(dir, h)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return l, err
		}
		if present := readHolder(dir); time.Since(start) >= patience(present) {
			return nil, fmt.Errorf("%v uses the folder, and only one job at a time may use it: end that job, or use another folder; if its host has crashed, delete %s",
				present, filepath.Join(dir, lockName))
		}
	}
}

// tryLock is lockFolder without a wait. Its error is EWOULDBLOCK if there is another holder.
func tryLock(dir string, h holder) (*folderLock, error) {
	content, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o666)
	if err != nil {
		return nil, err
	}
	l := &folderLock{holder: h, file: f, err: syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)}
	mine, err := f.Stat()
	there, gone := os.Lstat(f.Name())
	switch {
	case errors.Is(l.err, syscall.EWOULDBLOCK), gone != nil, err == nil && !os.SameFile(mine, there):
		err = syscall.EWOULDBLOCK // the holder may just have deleted the file
	case err == nil:
		if err = f.Truncate(0); err == nil {
			f.WriteAt(content, 0) // if the disk is full, the holder is "another process"
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return l, nil
}

// release deletes the file and unlocks it.
func (l *folderLock) release() error {
	if readHolder(filepath.Dir(l.file.Name())).ID == l.ID {
		os.Remove(l.file.Name()) // if this fails, the next holder locks the same file
	}
	return l.file.Close()
}

// readHolder returns the holder that a folder's lock file contains, or the zero holder if there is no such file.
func readHolder(dir string) (h holder) {
	if data, err := files.Read(filepath.Join(dir, lockName), 4<<10); err == nil && json.Unmarshal(data, &h) != nil {
		return holder{}
	}
	return h
}
