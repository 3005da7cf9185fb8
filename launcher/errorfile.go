package launcher

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strconv"
	"time"

	"github.com/goddp/goddp/internal/atomicfile"
)

// maxErrorFile bounds what is read of an error file, in bytes.
const maxErrorFile = 1 << 20

// ErrorFile is what a worker left in the file that TORCHELASTIC_ERROR_FILE
// names, in torchelastic's format:
//
//	{"message": {"message": "...", "extraInfo": {"py_callstack": "...", "timestamp": "1700000000.123"}}}
//
// The inner object may be a plain string instead. A worker that failed because
// another rank did, which it lost or which told it, adds "caused_by": "2" to extraInfo.
type ErrorFile struct {
	Message   string
	Callstack string    // "" if there is none
	Time      time.Time // when the error happened; zero if the file does not say
	// CausedBy is the rank whose failure made the worker fail; nil if it failed for
	// a reason of its own, or does not say.
	CausedBy *int
}

// readErrorFile reads the error file of a worker that has ended. No file, or an
// empty one, is nil and no error.
func readErrorFile(path string) (*ErrorFile, error) {
	data, err := atomicfile.Read(path, maxErrorFile)
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
			Callstack string          `json:"py_callstack"`
			Timestamp json.RawMessage // a string or a number
			CausedBy  string          `json:"caused_by"`
		}
	}
	if err := json.Unmarshal(outer["message"], &inner); err != nil {
		return nil, err
	}
	ef := &ErrorFile{Message: inner.Message, Callstack: inner.ExtraInfo.Callstack}
	if rank, err := strconv.Atoi(inner.ExtraInfo.CausedBy); err == nil {
		ef.CausedBy = &rank
	}
	stamp := string(bytes.Trim(inner.ExtraInfo.Timestamp, `"`))
	seconds, err := strconv.ParseFloat(stamp, 64)
	if err == nil && seconds > 0 && seconds < math.MaxInt32*1e3 {
		ef.Time = time.UnixMicro(int64(seconds * 1e6))
	}
	return ef, nil
}

// copyErrorFile tells whoever started this agent, through the error file it
// named, about the root cause: the worker's own file with errorCode added, or
// one written on the worker's behalf.
func copyErrorFile(root *Failure, path string) error {
	var doc, message map[string]json.RawMessage // what cannot be read or parsed is replaced below
	if data, err := atomicfile.Read(root.errorPath, maxErrorFile); err == nil {
		_ = json.Unmarshal(data, &doc)
	}
	if json.Unmarshal(doc["message"], &message) != nil || message == nil {
		var text string
		if json.Unmarshal(doc["message"], &text) != nil {
			text = fmt.Sprintf("rank %d (pid %d) %s", root.Rank, root.PID, root.Status)
		}
		stamp := strconv.FormatFloat(float64(root.Time.UnixMicro())/1e6, 'f', 3, 64)
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
	return atomicfile.WriteBytes(path, 0o644, data)
}

// mustMarshal is the JSON of plain data.
func mustMarshal(v any) json.RawMessage {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return text
}
