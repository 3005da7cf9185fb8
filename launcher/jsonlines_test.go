package launcher

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// parseJSONLines returns the lines of a console. Each must be one JSON object.
func parseJSONLines(t *testing.T, output string) (lines []map[string]any) {
	t.Helper()
	for text := range strings.Lines(output) {
		var line map[string]any
		if err := json.Unmarshal([]byte(text), &line); err != nil || !strings.HasSuffix(text, "\n") {
			t.Fatalf("%.200q: %v", text, err)
		}
		stamp, _ := line["time"].(string)
		if at, err := time.Parse(time.RFC3339Nano, stamp); err != nil || time.Since(at).Abs() > soon || len(stamp) != len(jsonTime)-len("07:00") {
			t.Errorf("time %q: %v", stamp, err)
		}
		delete(line, "time")
		lines = append(lines, line)
	}
	return lines
}

// Whatever a worker writes, the console shows JSON objects, and the file holds the bytes.
func TestJSONLines(t *testing.T) {
	long := strings.Repeat("y", 2*maxLine+10)
	text := "plain <&>\n" + `{"loss": "1"}` + "\n\xff\xfe\"\x00\x1b[K\u2028\n 10%\r 20%\rdone\r\n\n" + long + "\npartial"
	path := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	j := role(t, 2, "printer", path)
	j.cfg.JSONLines, j.cfg.Role, j.cfg.LogDir = true, "trainer", t.TempDir()
	j.cfg.Tee = allStreams(stdoutStream)
	result, err := j.run(t)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"plain <&>", `{"loss": "1"}`, "\ufffd\ufffd\"\x00\x1b[K\u2028", " 10%", " 20%", "done", "", long, "partial"}
	for _, output := range []struct{ stream, text string }{{"stdout", j.out.String()}, {"stderr", j.err.String()}} {
		shown, rest := map[int][]string{}, map[int]string{}
		for _, line := range parseJSONLines(t, output.text) {
			rank := int(line["rank"].(float64))
			text := line["line"].(string)
			if rest[rank] += text; line["partial"] != true {
				shown[rank] = append(shown[rank], rest[rank])
				rest[rank] = ""
			} else if len(text) != maxLine {
				t.Errorf("a part of %d bytes, want %d", len(text), maxLine)
			}
			delete(line, "line")
			delete(line, "partial")
			if got, want := fmt.Sprint(line), fmt.Sprint(map[string]any{
				"source": "worker", "host": hostname(), "node": 0, "rank": rank, "local_rank": rank, "role": "trainer", "attempt": 0, "stream": output.stream,
			}); got != want {
				t.Errorf("got %v, want %v", got, want)
			}
		}
		for rank := range 2 {
			if !slices.Equal(shown[rank], want) {
				t.Errorf("%s of rank %d: got %.300q, want %.300q", output.stream, rank, shown[rank], want)
			}
		}
	}
	for local := range 2 {
		got, err := os.ReadFile(fmt.Sprintf("%s/attempt_0/%d/%s", result.LogDir, local, stdoutLog))
		if err != nil || string(got) != text {
			t.Errorf("the file of rank %d: %.200q, %v", local, got, err)
		}
	}
}

// The agent's own lines and the report of a failure are JSON objects too.
func TestJSONLinesOfAFailure(t *testing.T) {
	j := shell(2, `echo "rank $RANK begins" >&2; if [ $RANK = 0 ]; then exec sleep 1000; fi
		echo '{"message": {"message": "ValueError:\nbad batch", "extraInfo": {"py_callstack": "File \"train.py\", line 7", "timestamp": "1"}}}' > $TORCHELASTIC_ERROR_FILE
		exit 6`)
	j.cfg.JSONLines, j.cfg.MaxRestarts = true, 1
	j.fail(t)
	lines := parseJSONLines(t, j.err.String())
	restarts := 0
	for _, line := range lines {
		if line["source"] == "golaunch" && strings.Contains(line["line"].(string), "restart 1 of 1: bash failed: rank 1") {
			restarts++
		}
	}
	if restarts != 1 {
		t.Errorf("%d lines about the restart:\n%s", restarts, &j.err)
	}
	last := lines[len(lines)-1]
	report, ok := last["failure"].(map[string]any)
	if !ok || last["source"] != "golaunch" || last["host"] != hostname() || !strings.Contains(last["line"].(string), "bash failed: rank 1") {
		t.Fatalf("the last line is %v", last)
	}
	root := report["root_cause"].(map[string]any)
	if report["exit_code"] != 6.0 || report["restarts"] != 1.0 || root["rank"] != 1.0 || root["code"] != 6.0 || root["attempt"] != 1.0 ||
		root["message"] != "ValueError:\nbad batch" || fmt.Sprint(root["stack"]) != `[File "train.py", line 7]` || fmt.Sprint(root["stderr"]) != "[rank 1 begins]" {
		t.Errorf("got %v", report)
	}
	stopped, _ := report["stopped"].([]any)
	if len(stopped) != 1 || stopped[0].(map[string]any)["signal"] != "SIGTERM" {
		t.Errorf("stopped: %v", report["stopped"])
	}
}

// A panic's stack is in the report alone.
func TestJSONLinesOfAPanic(t *testing.T) {
	j := role(t, 1, "panic")
	j.cfg.JSONLines, j.cfg.MaxRestarts = true, 1
	j.fail(t)
	lines := parseJSONLines(t, j.err.String())
	stack := fmt.Sprint(lines[len(lines)-1]["failure"].(map[string]any)["root_cause"].(map[string]any)["stack"])
	if !strings.Contains(stack, "launcher.TestMain") || strings.Contains(j.err.String(), "goroutine ") || strings.Count(j.err.String(), "in the program, innermost call first") != 2 {
		t.Errorf("stack %s in\n%s", stack, &j.err)
	}
}

// What the store logs is the agent's own line, on its console.
func TestJSONLinesOfTheStore(t *testing.T) {
	j := shell(1, `exec 3<>/dev/tcp/$MASTER_ADDR/$MASTER_PORT; printf 'GET / HTTP/1.1\r\n\r\n' >&3; cat <&3 >/dev/null 2>&1; exit 0`)
	j.cfg.JSONLines = true
	if _, err := j.run(t); err != nil {
		t.Fatal(err)
	}
	lines := parseJSONLines(t, j.err.String())
	if len(lines) != 1 || lines[0]["source"] != "golaunch" || !strings.Contains(lines[0]["line"].(string), "store: connection rejected") {
		t.Errorf("got %v", lines)
	}
}
