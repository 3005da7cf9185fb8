package failure

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strconv"
	"time"

	"github.com/goddp/goddp/internal/files"
)

// maxErrorFile is the largest number of bytes read from an error file.
const maxErrorFile = 1 << 20

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

// ReadErrorFile reads the error file of a worker that has ended. It returns nil and no
// error if there is no file, or if the file is empty.
func ReadErrorFile(path string) (*ErrorFile, error) {
	data, err := files.Read(path, maxErrorFile)
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
	var inner struct {
		Message   string
		ExtraInfo struct {
			Callstack   string          `json:"py_callstack"`
			Timestamp   json.RawMessage // a string or a number
			CausedBy    string          `json:"caused_by"`
			Interrupted string          `json:"interrupted"`
		}
	}
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

// CopyErrorFile writes the root cause into the error file of this agent's parent. It
// copies the worker's error file and adds errorCode. If the worker wrote none,
// CopyErrorFile makes one from the exit status.
func CopyErrorFile(root *Failure, path string) error {
	var doc, message map[string]json.RawMessage // if they cannot be read or parsed, they are replaced below
	if data, err := files.Read(root.ErrorPath, maxErrorFile); err == nil {
		_ = json.Unmarshal(data, &doc)
	}
	if json.Unmarshal(doc["message"], &message) != nil || message == nil {
		var text string
		switch {
		case json.Unmarshal(doc["message"], &text) == nil:
		case root.ErrorFile != nil: // on another node
			text = root.ErrorFile.Message
		case root.Kind != Worker:
			text = fmt.Sprintf("node %d (%s) %s", root.Node, root.Host, root.Why)
		default:
			text = fmt.Sprintf("rank %d (pid %d) %s", root.Rank, root.PID, root.Status)
		}
		stamp := strconv.FormatFloat(float64(root.When().UnixMicro())/1e6, 'f', 3, 64)
		message = map[string]json.RawMessage{
			"message":   mustMarshal(text),
			"extraInfo": mustMarshal(map[string]string{"timestamp": stamp}),
		}
	}
	message["errorCode"] = mustMarshal(root.ExitCode())
	if doc == nil {
		doc = map[string]json.RawMessage{}
	}
	doc["message"] = mustMarshal(message)
	data, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	return files.WriteBytes(path, 0o644, data)
}
