package store_test

import (
	"context"
	"fmt"

	"github.com/goddp/goddp/internal/store"
)

// A client counts in a server.
func Example() {
	server, err := store.Listen("127.0.0.1:0", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	ctx := context.Background()
	client, err := store.Dial(ctx, server.Addr(), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	joined := store.Prefix(client, "epoch 1/")
	for range 3 {
		n, err := joined.Add(ctx, "joined", 1)
		fmt.Println(n, err)
	}
	// Output:
	// 1 <nil>
	// 2 <nil>
	// 3 <nil>
}
