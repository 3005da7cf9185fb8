package jobenv

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/goddp/goddp/internal/files"
)

// MaxErrorFile is the largest number of bytes read from an error file.
const MaxErrorFile = 1 << 20

// ErrorFile is the content of the file that TORCHELASTIC_ERROR_FILE names to a worker, in
// torchelastic's format:
//
//	{"message": {"message": "...", "extraInfo": {"py_callstack": "...", "timestamp": "1700000000.123"}}}
//
// The inner object may be a plain string instead. extraInfo may hold two more entries:
// "caused_by": "2" if rank 2 failed first and the worker failed because of that, and
// "interrupted": "true" if the worker's error is that it was told to stop.
type ErrorFile struct {
	Message     string
	Callstack   string    // "" if there is none
	Time        time.Time // when the error happened; zero if it is not in the file
	Interrupted bool      // the worker says that it failed because it was told to stop
	// CausedBy is the rank whose failure made the worker fail. It is nil if the failure
	// originated in the worker, or if the file does not say.
	CausedBy *int
}

// errorMessage is the inner object of an error file.
type errorMessage struct {
	Message   string `json:"message"`
	ExtraInfo struct {
		Callstack   string          `json:"py_callstack"`
		Timestamp   json.RawMessage `json:"timestamp"` // a string or a number
		CausedBy    string          `json:"caused_by,omitempty"`
		Interrupted string          `json:"interrupted,omitempty"`
	} `json:"extraInfo"`
}

// Write writes the error file of this process, with the current time. It writes nothing if
// TORCHELASTIC_ERROR_FILE is not set.
func (e *ErrorFile) Write() error {
	path := os.Getenv(ErrorFileVar)
	if path == "" {
		return nil
	}
	m := errorMessage{Message: e.Message}
	m.ExtraInfo.Callstack = e.Callstack
	m.ExtraInfo.Timestamp = fmt.Appendf(nil, `"%.6f"`, float64(time.Now().UnixMicro())/1e6)
	if e.CausedBy != nil {
		m.ExtraInfo.CausedBy = strconv.Itoa(*e.CausedBy)
	}
	if e.Interrupted {
		m.ExtraInfo.Interrupted = "true"
	}
	content, err := json.Marshal(map[string]errorMessage{"message": m})
	if err != nil {
		return err
	}
	// The launcher's folder may be gone: systemd-tmpfiles, for example, removes old files.
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	// Write the file atomically, because comm.Main and the watchdog may both write it, and one of
	// them may end the process while the other is writing.
	return files.WriteBytes(path, 0o644, content)
}

// ReadErrorFile reads the error file of a worker that has ended. It returns nil and no
// error if there is no file, or if the file is empty.
func ReadErrorFile(path string) (*ErrorFile, error) {
	data, err := files.Read(path, MaxErrorFile)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil || len(bytes.TrimSpace(data)) == 0 {
		return nil, err
	}
	ef, err := parseErrorFile(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return ef, nil
}

func parseErrorFile(data []byte) (*ErrorFile, error) {
	var outer map[string]json.RawMessage
	if err := json.Unmarshal(data, &outer); err != nil {
		return nil, err
	}
	var plain string
	if json.Unmarshal(outer["message"], &plain) == nil {
		return &ErrorFile{Message: plain}, nil
	}
	var inner errorMessage
	if err := json.Unmarshal(outer["message"], &inner); err != nil {
		return nil, err
	}
	ef := &ErrorFile{Message: inner.Message, Callstack: inner.ExtraInfo.Callstack, Interrupted: inner.ExtraInfo.Interrupted == "true"}
	if rank, err := strconv.Atoi(inner.ExtraInfo.CausedBy); err == nil && rank >= 0 {
		ef.CausedBy = &rank
	}
	stamp := string(bytes.Trim(inner.ExtraInfo.Timestamp, `"`))
	seconds, err := strconv.ParseFloat(stamp, 64)
	if err == nil && seconds > 0 && seconds < math.MaxInt32*1e3 {
		ef.Time = time.UnixMicro(int64(seconds * 1e6))
	}
	return ef, nil
}
