"""Operations research without GPUs: one module a problem, each with its data, exact method, heuristic and bound."""
