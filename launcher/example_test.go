package launcher_test

import (
	"context"
	"fmt"

	"github.com/goddp/goddp/launcher"
)

// Two workers of a job whose rank 1 fails. The program's own process becomes the job's
// reaper where main calls [launcher.ReaperMain].
func ExampleRun() {
	_, err := launcher.Run(context.Background(), &launcher.Config{
		Args:    []string{"sh", "-c", "exit $RANK"},
		Workers: 2,
	})
	fmt.Println("exit code", launcher.ExitCode(err))
	// Output: exit code 1
}
