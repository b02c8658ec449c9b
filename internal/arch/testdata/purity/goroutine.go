package purity

func goroutines() int {
	c := make(chan int) // want: has a channel
	go func() {         // want: starts a goroutine
		c <- 1 // want: sends on a channel
	}()
	select { // want: selects
	case v := <-c:
		return v
	default:
	}
	for v := range c { // want: has a channel
		return v
	}
	return 0
}
