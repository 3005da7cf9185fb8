package failure

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/goddp/goddp/internal/files"
	"github.com/goddp/goddp/internal/jobenv"
)

// CopyErrorFile writes the root cause into the error file of this agent's parent. It
// copies the worker's error file and adds errorCode. If the worker wrote none,
// CopyErrorFile makes one from the exit status.
func CopyErrorFile(root *Failure, path string) error {
	var doc, message map[string]json.RawMessage // if they cannot be read or parsed, they are replaced below
	if data, err := files.Read(root.ErrorPath, jobenv.MaxErrorFile); err == nil {
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
