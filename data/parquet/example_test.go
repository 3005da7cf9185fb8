package parquet_test

import (
	"fmt"
	"os"
	"path/filepath"

	format "github.com/parquet-go/parquet-go"

	"github.com/goddp/goddp/data/parquet"
	"github.com/goddp/goddp/device"
)

// Two columns of a file become one field of the data set, a third its labels.
func ExampleOpen() {
	type person struct {
		Age    float32 `parquet:"age"`
		Income float32 `parquet:"income"`
		Class  int32   `parquet:"class"`
	}
	dir, err := os.MkdirTemp("", "parquet")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "train.parquet")
	if err := format.WriteFile(path, []person{{31, 4.5, 0}, {47, 6.25, 1}}); err != nil {
		fmt.Println(err)
		return
	}

	set, err := parquet.Open(path,
		parquet.Field{Name: "features", Columns: []string{"age", "income"}},
		parquet.Field{Name: "class", Columns: []string{"class"}, Integer: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	features, class := make([]float32, 2), make([]int64, 1)
	err = set.Read([]int{1}, []device.Tensor{device.HostTensor(features, device.Float32, 1, 2), device.HostTensor(class, device.Int64, 1)})
	fmt.Println(set.Len(), "rows; the last has", features, class, err)
	// Output: 2 rows; the last has [47 6.25] [1] <nil>
}
