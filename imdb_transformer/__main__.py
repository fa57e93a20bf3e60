from imdb_transformer.cli import main

main()
