package expression

import (
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/cost"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
)

// What the estimate of an expression's cost takes for granted of the JSON: it
// only sorts out what would hardly ever be within the limit.
const (
	assumedElements = 32
	assumedString   = 1000
)

// sizes estimates the sizes of what is not known before there is a value.
type sizes struct{}

func (sizes) EstimateSize(n cost.AstNode) *cost.SizeEstimate {
	most := uint64(assumedElements)
	if t := n.Type(); t.IsExactType(cel.StringType) || t.IsExactType(cel.BytesType) {
		most = assumedString
	}
	return &cost.SizeEstimate{Min: 0, Max: most}
}

func (sizes) EstimateCallCost(string, string, *cost.AstNode, []cost.AstNode) *cost.CallEstimate {
	return nil
}

// maxText is the longest string that one call may make.
const maxText = 4 << 20

// boundedStrings takes the place of those two functions on strings whose result
// grows with the product of their arguments. The cost of a call counts only after
// it, when a payload of one megabyte could have taken all memory.
func boundedStrings() cel.EnvOption {
	text, list := cel.StringType, cel.ListType(cel.StringType)
	join := func(v ref.Val, sep string) ref.Val {
		l := v.(traits.Lister)
		var parts []string
		size := 0
		for it := l.Iterator(); it.HasNext() == types.True; {
			s, ok := it.Next().(types.String)
			if !ok {
				return types.NewErr("join is of strings")
			}
			if size += len(s) + len(sep); size > maxText {
				return tooLong()
			}
			parts = append(parts, string(s))
		}
		return types.String(strings.Join(parts, sep))
	}
	replace := func(s, from, to string, n int) ref.Val {
		found := strings.Count(s, from)
		if n >= 0 {
			found = min(found, n)
		}
		if len(s)+found*(len(to)-len(from)) > maxText {
			return tooLong()
		}
		return types.String(strings.Replace(s, from, to, n))
	}
	str := func(v ref.Val) string { return string(v.(types.String)) }
	return cel.Lib(library{
		cel.Function("join",
			cel.MemberOverload("list_join", []*cel.Type{list}, text,
				cel.UnaryBinding(func(v ref.Val) ref.Val { return join(v, "") })),
			cel.MemberOverload("list_join_string", []*cel.Type{list, text}, text,
				cel.BinaryBinding(func(v, sep ref.Val) ref.Val { return join(v, str(sep)) }))),
		cel.Function("replace",
			cel.MemberOverload("string_replace_string_string", []*cel.Type{text, text, text}, text,
				cel.FunctionBinding(func(a ...ref.Val) ref.Val { return replace(str(a[0]), str(a[1]), str(a[2]), -1) })),
			cel.MemberOverload("string_replace_string_string_int", []*cel.Type{text, text, text, cel.IntType}, text,
				cel.FunctionBinding(func(a ...ref.Val) ref.Val {
					return replace(str(a[0]), str(a[1]), str(a[2]), int(a[3].(types.Int)))
				}))),
	})
}

// tooLong is made anew each time: CEL writes into it where it happened.
func tooLong() ref.Val { return types.NewErr("a string would become longer than %d bytes", maxText) }

type library []cel.EnvOption

func (l library) CompileOptions() []cel.EnvOption     { return l }
func (l library) ProgramOptions() []cel.ProgramOption { return nil }
