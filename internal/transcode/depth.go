package transcode

import "bytes"

// TooDeep reports whether JSON is nested deeper than most. It only counts brackets:
// whether the text is JSON at all is for the decoder to find out.
func TooDeep(b []byte, most int) bool {
	depth := 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			i += stringLen(b[i+1:])
		case '{', '[':
			if depth++; depth > most {
				return true
			}
		case '}', ']':
			depth--
		}
	}
	return false
}

// stringLen returns the length of the JSON string that b begins in, with its closing quote.
func stringLen(b []byte) int {
	for n := 0; ; {
		i := bytes.IndexByte(b[n:], '"')
		if i < 0 {
			return len(b)
		}
		n += i + 1
		escape := n - 1
		for escape > 0 && b[escape-1] == '\\' {
			escape--
		}
		if (n-1-escape)%2 == 0 {
			return n
		}
	}
}
